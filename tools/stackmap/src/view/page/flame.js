// SPDX-License-Identifier: MIT OR Apache-2.0

// Flame graphs on a canvas: the outermost frames at the top.

const ROW = 18;
// Narrower frames are left out.
const LEAST = 0.4;
// The highest canvas that browsers have, in rows.
const MAX_DEPTH = 800;
// What names are of, by the number of their kind in the data.
const KINDS = ["other", "kernel", "module", "other", "user", "user", "other"];

// A canvas as large as its place, in the pixels of the screen.
function fit(canvas, width, height) {
	const scale = window.devicePixelRatio || 1;
	canvas.width = Math.max(1, Math.round(width * scale));
	canvas.height = Math.max(1, Math.round(height * scale));
	const context = canvas.getContext("2d");
	context.scale(scale, scale);
	return context;
}

// A name with nothing in it that is not seen or turns the text around.
const shown = (name) => name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu, "\ufffd");

// As much of a text as there is space for.
function cut(context, text, width) {
	if (context.measureText(text).width <= width)
		return text;
	let low = 0, high = text.length;
	while (low < high) {
		const middle = (low + high + 1) >>> 1;
		if (context.measureText(`${text.slice(0, middle)}…`).width <= width)
			low = middle;
		else
			high = middle - 1;
	}
	return low ? `${text.slice(0, low)}…` : "";
}

// Events in the order in which they came, each as wide as it weighs. At most one event is drawn for each pixel:
// the one in its middle.
class InOrder {
	constructor(recording, from, to) {
		Object.assign(this, {recording, from, to, tree: recording.tree});
		this.stack = [];
		this.zoom(null);
	}

	zoom(box) {
		if (box)
			this.stack.push(this.range);
		this.range = box ? [box.from, box.to] : [this.recording.before[this.from], this.recording.before[this.to]];
		if (!box)
			this.stack = [];
		return this;
	}

	back() {
		const range = this.stack.pop();
		if (range)
			this.range = range;
	}

	boxes(width) {
		const rows = [], {before, node} = this.recording, tree = this.tree;
		const [from, to] = this.range, scale = width / (to - from);
		if (!(to > from))
			return rows;
		let open = [];
		const close = (depth, x, weight) => {
			for (const box of open.splice(depth)) {
				box.x1 = x;
				box.to = weight;
			}
		};
		let weight = from;
		while (weight < to) {
			const x = (weight - from) * scale;
			const event = this.recording.at(x + 0.5 < width ? Math.max(weight, from + (Math.floor(x) + 0.5) / scale) : weight);
			const path = tree.path(node[event]);
			let same = 0;
			while (same < open.length && same < path.length && open[same].node === path[same])
				same++;
			close(same, x, weight);
			for (let depth = same; depth < path.length; depth++) {
				const box = {node: path[depth], x0: x, from: weight};
				open.push(box);
				(rows[depth] ??= []).push(box);
			}
			// To the end of the event, or of the pixel.
			const end = Math.min(to, Math.max(before[event + 1], from + (Math.floor(x) + 1) / scale));
			if (!(end > weight))
				break;
			weight = end;
		}
		close(0, width, to);
		for (const row of rows)
			for (const box of row)
				box.value = box.to - box.from;
		return rows;
	}
}

// Equal stacks together, the heaviest at the left.
class LeftHeavy {
	constructor(tree, weights, names) {
		Object.assign(this, {tree, weights, names});
		this.zoomed = 0;
	}

	zoom(box) {
		this.zoomed = box ? box.node : 0;
		return this;
	}

	back() {
		this.zoomed = this.tree.parent[this.zoomed];
	}

	boxes(width) {
		const rows = [], {total} = this.weights, {tree, names} = this;
		const put = (node, depth, x0, x1) => (rows[depth] ??= []).push({node, x0, x1, value: total[node]});
		const path = tree.path(this.zoomed);
		path.forEach((node, depth) => put(node, depth, 0, width));
		const scale = width / total[this.zoomed];
		const open = [[this.zoomed, path.length, 0]];
		while (open.length) {
			const [node, depth, left] = open.pop();
			const below = Array.from(tree.children(node)).filter((child) => total[child] * scale >= LEAST);
			const nameOf = (child) => names[tree.func[child]];
			below.sort((one, other) => total[other] - total[one] || (nameOf(one) < nameOf(other) ? -1 : 1));
			let x = left;
			for (const child of below) {
				const end = x + total[child] * scale;
				put(child, depth, x, end);
				open.push([child, depth + 1, x]);
				x = end;
			}
		}
		for (const row of rows)
			row.sort((one, other) => one.x0 - other.x0);
		return rows;
	}
}

class Flame {
	// BOX has a canvas; SAY is called with the frame that the mouse or the keyboard is at, or with null;
	// SANDWICH with the function whose callers and callees are wanted.
	constructor(box, recording, say, sandwich) {
		this.box = box;
		this.canvas = box.querySelector("canvas");
		Object.assign(this, {recording, say, sandwich, view: null, rows: [], at: null, matches: null});
		this.canvas.addEventListener("pointermove", (event) => this.hover(event));
		this.canvas.addEventListener("pointerleave", () => this.say(null));
		this.canvas.addEventListener("click", (event) => this.click(event));
		this.canvas.addEventListener("keydown", (event) => this.key(event));
		this.canvas.addEventListener("focus", () => this.draw());
		this.canvas.addEventListener("blur", () => this.draw());
	}

	// Shows IN ORDER or LEFT HEAVY; shares are of WHOLE.
	show(view, whole) {
		Object.assign(this, {view, whole, at: null});
		this.layout();
	}

	layout() {
		if (!this.view || !this.box.clientWidth)
			return;
		this.width = this.box.clientWidth;
		this.rows = this.view.boxes(this.width).slice(0, MAX_DEPTH);
		this.at = null;
		this.draw();
	}

	draw() {
		if (!this.view)
			return;
		const height = Math.max(this.rows.length * ROW, ROW);
		this.canvas.style.width = `${this.width}px`;
		this.canvas.style.height = `${height}px`;
		const context = fit(this.canvas, this.width, height);
		const style = getComputedStyle(this.canvas);
		const colors = {};
		for (const kind of ["kernel", "module", "user", "other", "match", "on", "focus"])
			colors[kind] = style.getPropertyValue(`--${kind}`);
		context.font = "12px system-ui, sans-serif";
		context.textBaseline = "middle";
		const {func} = this.view.tree, {names, kinds} = this.recording;
		this.rows.forEach((row, depth) => {
			const y = depth * ROW;
			for (const {node, x0, x1} of row) {
				const name = func[node], wide = x1 - x0;
				const match = this.matches && this.matches[name];
				context.fillStyle = match ? colors.match : colors[KINDS[kinds[name]]];
				context.globalAlpha = this.matches && !match ? 0.35 : 1;
				context.fillRect(x0, y, Math.max(wide - (wide > 2 ? 0.6 : 0), 0.4), ROW - 1);
				if (wide > 26) {
					context.fillStyle = match ? "#fff" : colors.on;
					context.fillText(cut(context, shown(names[name]), wide - 6), x0 + 3, y + ROW / 2);
				}
			}
		});
		context.globalAlpha = 1;
		const at = this.at && this.boxAt(this.at);
		if (at && document.activeElement === this.canvas) {
			context.lineWidth = 2;
			context.strokeStyle = colors.focus;
			context.strokeRect(at.x0 + 1, this.at.depth * ROW + 1, Math.max(at.x1 - at.x0 - 2, 1), ROW - 3);
		}
	}

	boxAt({depth, index}) {
		return this.rows[depth] && this.rows[depth][index];
	}

	find(event) {
		const depth = Math.floor(event.offsetY / ROW), row = this.rows[depth] || [];
		const index = row.findIndex(({x0, x1}) => x0 <= event.offsetX && event.offsetX < x1);
		return index < 0 ? null : {depth, index};
	}

	tell(at = this.at) {
		const box = at && this.boxAt(at);
		this.say(box ? {name: this.view.tree.func[box.node], value: box.value, whole: this.whole} : null);
	}

	hover(event) {
		this.tell(this.find(event));
	}

	click(event) {
		this.at = this.find(event);
		this.enter();
	}

	enter() {
		const box = this.at && this.boxAt(this.at);
		const depth = this.at && this.at.depth;
		this.view.zoom(box || null);
		this.layout();
		// The frame that was zoomed to.
		this.at = box ? {depth, index: 0} : null;
		this.draw();
		this.tell();
	}

	key(event) {
		const {depth, index} = this.at || {depth: 0, index: 0};
		const go = (at) => {
			if (this.boxAt(at))
				this.at = at;
		};
		const inside = (to, box) => (this.rows[to] || []).map((other, index) => ({other, index}))
			.filter(({other}) => other.x0 < box.x1 && other.x1 > box.x0)
			.sort((one, other) => other.other.value - one.other.value)[0];
		const box = this.boxAt({depth, index});
		if (event.key.startsWith("Arrow") && !this.at) {
			go({depth: 0, index: 0});
		} else if (event.key === "ArrowLeft") {
			go({depth, index: index - 1});
		} else if (event.key === "ArrowRight") {
			go({depth, index: index + 1});
		} else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
			const to = depth + (event.key === "ArrowUp" ? -1 : 1);
			const other = box && inside(to, box);
			if (other)
				go({depth: to, index: other.index});
		} else if (event.key === "Enter") {
			this.enter();
		} else if (event.key === "Backspace") {
			this.view.back();
			this.layout();
		} else if (event.key === "Escape") {
			this.view.zoom(null);
			this.layout();
		} else if (event.key === "s" && this.at && box) {
			this.sandwich(this.view.tree.func[box.node]);
		} else {
			return;
		}
		event.preventDefault();
		this.draw();
		this.tell();
		if (this.at) {
			const top = this.at.depth * ROW;
			if (top < this.box.scrollTop || top + ROW > this.box.scrollTop + this.box.clientHeight)
				this.box.scrollTop = top - this.box.clientHeight / 2;
		}
	}
}
