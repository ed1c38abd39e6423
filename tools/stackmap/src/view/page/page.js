// SPDX-License-Identifier: MIT OR Apache-2.0

// What the page does: the range that is selected in the heat map is what the graphs and tables are of.

// Rows of the table of functions.
const MAX_FUNCTIONS = 500;
const element = (id) => document.getElementById(id);

class Page {
	constructor(recording) {
		this.recording = recording;
		const {meta} = recording;
		document.title = shown(`${meta.title} - stackmap`);
		element("title").textContent = shown(meta.title);
		element("about").textContent = shown(meta.about);
		element("notes").textContent = element("notes").title = shown(meta.notes.join("; "));
		const say = (frame) => this.say(frame);
		const sandwich = (name) => {
			this.func = name;
			this.show("sandwich");
		};
		this.graph = new Flame(element("graph"), recording, say, sandwich);
		this.callers = new Flame(element("callers"), recording, say, sandwich);
		this.callees = new Flame(element("callees"), recording, say, sandwich);
		this.order = "total";
		this.func = null;
		this.heat = new Heat(element("heat"), recording, (range) => this.select(range));
		this.listen();
		this.view = "heavy";
		this.select(null);
		this.say(null);
		this.scale();
	}

	listen() {
		for (const view of ["time", "heavy", "sandwich"])
			element(`tab-${view}`).addEventListener("click", () => this.show(view));
		for (const order of ["total", "self"])
			element(`by-${order}`).addEventListener("click", () => {
				this.order = order;
				this.list();
			});
		const zoom = (how) => () => {
			this.heat[how]();
			this.scale();
		};
		element("whole").addEventListener("click", () => this.heat.all());
		element("closer").addEventListener("click", zoom("closer"));
		element("wider").addEventListener("click", zoom("wider"));
		element("heat").addEventListener("keyup", () => this.scale());
		element("rows").addEventListener("change", (event) => {
			this.heat.rows = event.target.value;
			this.heat.show(this.heat.asked.from, this.heat.asked.to);
			this.scale();
		});
		element("keys").addEventListener("click", () => element("help").showModal());
		element("search").addEventListener("input", () => this.search());
		document.addEventListener("keydown", (event) => this.key(event));
		element("functions").addEventListener("keydown", (event) => this.step(event));
		// Not while the window is still being moved.
		let pending = 0;
		const redraw = () => {
			cancelAnimationFrame(pending);
			pending = requestAnimationFrame(() => {
				this.heat.draw();
				this.draw();
			});
		};
		window.addEventListener("resize", redraw);
		window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
	}

	key(event) {
		const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
		if (event.ctrlKey || event.altKey || event.metaKey || element("help").open)
			return;
		if (event.key === "Escape" && event.target.id === "search") {
			element("search").value = "";
			this.search();
			event.target.blur();
		} else if (!typing && event.key === "/") {
			element("search").focus();
		} else if (!typing && ["1", "2", "3"].includes(event.key)) {
			this.show(["time", "heavy", "sandwich"][event.key - 1]);
		} else {
			return;
		}
		event.preventDefault();
	}

	scale() {
		element("scale").textContent = this.heat.scaleText();
	}

	// A range of time, with its first and last microsecond, or null.
	select(range) {
		const {recording} = this;
		this.from = range ? recording.find(range.from) : 0;
		this.to = range ? recording.find(range.to + 1) : recording.length;
		this.weights = recording.weights(this.from, this.to);
		this.whole = recording.before[this.to] - recording.before[this.from];
		let text = `${numberText(this.to - this.from)} of ${numberText(recording.length)} events`;
		if (recording.weight)
			text += `, ${numberText(this.whole)} ${shown(recording.meta.unit)}`;
		if (range)
			text += `, --time ${recording.timeText(range.from)}..${recording.timeText(range.to)}`;
		element("selection").textContent = text;
		this.made = {};
		this.draw();
		this.search();
	}

	show(view) {
		this.view = view;
		this.draw();
	}

	draw() {
		for (const view of ["time", "heavy", "sandwich"])
			element(`tab-${view}`).setAttribute("aria-selected", view === this.view);
		element("graph").hidden = this.view === "sandwich";
		element("sandwich").hidden = this.view !== "sandwich";
		const {recording} = this;
		if (this.view === "sandwich") {
			this.list();
			return;
		}
		// How far it was zoomed in to stays until another range is selected.
		this.made[this.view] ??= this.view === "time" ? new InOrder(recording, this.from, this.to) :
			new LeftHeavy(recording.tree, this.weights, recording.names);
		this.graph.show(this.made[this.view], this.whole);
	}

	// The table of functions.
	list() {
		const {recording} = this;
		const {total, self} = this.made.functions ??= recording.functions(this.weights);
		const by = this.order === "self" ? self : total;
		const order = Array.from(total.keys()).filter((name) => total[name] > 0);
		order.sort((one, other) => by[other] - by[one] || (recording.names[one] < recording.names[other] ? -1 : 1));
		if (this.func === null || !total[this.func])
			this.func = order.length ? order[0] : null;
		const shownNames = order.slice(0, MAX_FUNCTIONS);
		if (this.func !== null && !shownNames.includes(this.func))
			shownNames.push(this.func);
		const rows = shownNames.map((name) => {
			const row = document.createElement("tr");
			row.tabIndex = name === this.func ? 0 : -1;
			row.setAttribute("aria-selected", name === this.func);
			row.classList.toggle("match", Boolean(this.matches && this.matches[name]));
			for (const text of [total[name], self[name]].map(numberText).concat(shown(recording.names[name])))
				row.insertCell().textContent = text;
			row.addEventListener("click", () => this.choose(name, row));
			row.addEventListener("focus", () => this.choose(name, row));
			return row;
		});
		element("functions").replaceChildren(...rows);
		for (const order of ["total", "self"])
			element(`by-${order}`).setAttribute("aria-pressed", order === this.order);
		this.sides();
	}

	choose(name, row) {
		if (name === this.func)
			return;
		this.func = name;
		for (const other of element("functions").rows) {
			other.setAttribute("aria-selected", other === row);
			other.tabIndex = other === row ? 0 : -1;
		}
		this.sides();
	}

	// From row to row.
	step(event) {
		const row = event.target.closest("tr");
		const to = {ArrowUp: row.previousElementSibling, ArrowDown: row.nextElementSibling}[event.key];
		if (to) {
			to.focus();
			event.preventDefault();
		}
	}

	// Callers and callees of the function.
	sides() {
		const {recording, func} = this;
		const name = func === null ? "" : shown(recording.names[func]);
		element("callers-of").textContent = `Callers of ${name}`;
		element("callees-of").textContent = `Callees of ${name}`;
		for (const [flame, above] of [[this.callers, true], [this.callees, false]]) {
			const {tree, weights} = recording.around(func, this.weights, above);
			flame.show(new LeftHeavy(tree, weights, recording.names), this.whole);
		}
	}

	// What is below the mouse or the keyboard.
	say(frame) {
		const {recording} = this;
		element("status").textContent = frame ?
			`${shown(recording.names[frame.name])}: ${numberText(frame.value)} ${shown(recording.meta.unit)}, ${shareText(frame.value, frame.whole)}` :
			"";
	}

	search() {
		const {recording} = this, part = element("search").value.toLowerCase();
		this.matches = part ? recording.names.map((name) => name.toLowerCase().includes(part)) : null;
		let sum = 0;
		if (this.matches) {
			const {parent, func} = recording.tree, below = new Uint8Array(parent.length);
			for (let node = 1; node < parent.length; node++) {
				below[node] = below[parent[node]] || this.matches[func[node]] ? 1 : 0;
				if (below[node] && !below[parent[node]])
					sum += this.weights.total[node];
			}
		}
		element("found").textContent = this.matches ?
			`found in ${numberText(sum)}, ${shareText(sum, this.whole)}` : "";
		for (const flame of [this.graph, this.callers, this.callees]) {
			flame.matches = this.matches;
			if (flame.view && !flame.box.closest("[hidden]"))
				flame.draw();
		}
		const {names} = recording;
		for (const row of element("functions").rows)
			row.classList.toggle("match", Boolean(this.matches) && row.cells[2].textContent.toLowerCase().includes(part) && names.length > 0);
	}
}

read(element("data")).then((recording) => new Page(recording)).catch((error) => {
	element("status").textContent = `the recording cannot be read: ${error}`;
});
