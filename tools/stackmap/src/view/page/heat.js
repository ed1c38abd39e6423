// SPDX-License-Identifier: MIT OR Apache-2.0

// The heat map: columns of time; rows of CPUs, tasks or events, or of the offset in the time of the column.

const COLUMNS = 240;
// Of CPUs; more share rows.
const MAX_ROWS = 32;
// Of tasks and of events: those that weigh most, and one for the others.
const MOST = 12;
// Offsets in a column.
const OFFSETS = 25;
// Space for the names of rows, and for times.
const LEFT = 150, BELOW = 16;

class Heat {
	// RECORDING is shown; SELECT is called with the range of time that is selected, or with null for all.
	constructor(canvas, recording, select) {
		this.canvas = canvas;
		this.recording = recording;
		this.select = select;
		this.rows = "cpu";
		this.range = null;
		// The cells that the keyboard selects from and to.
		this.anchor = this.cursor = 0;
		this.show(0, recording.last);
		canvas.addEventListener("pointerdown", (event) => this.press(event));
		canvas.addEventListener("pointermove", (event) => this.move(event));
		canvas.addEventListener("keydown", (event) => this.key(event));
	}

	// Shows the time from one to another.
	show(from, to) {
		// Rows by offset begin with a whole column; other rows begin where it was asked for.
		this.asked = {from, to};
		this.from = from;
		this.to = to;
		const span = to - from + 1;
		this.step = Math.max(1, Math.ceil(span / COLUMNS));
		if (this.rows === "offset") {
			// 1, 2 or 5 of a power of ten, of whole units for each offset.
			const least = Math.max(this.step, OFFSETS), power = 10 ** Math.floor(Math.log10(least));
			this.step = [1, 2, 5, 10].map((of) => of * power).find((step) => step >= least && step % OFFSETS === 0) ||
				OFFSETS * Math.ceil(least / OFFSETS);
			this.from = Math.floor(from / this.step) * this.step;
		}
		this.columns = Math.max(1, Math.ceil((to - this.from + 1) / this.step));
		this.anchor = this.cursor = 0;
		this.count();
		this.draw();
	}

	// Which row each CPU, task or event has, and what rows are called.
	order() {
		const {recording} = this;
		const heaviest = (column, names) => {
			const weights = new Float64Array(names.length);
			for (let row = 0; row < recording.length; row++)
				weights[column[row]] += recording.weight ? recording.weight[row] : 1;
			const order = Array.from(names.keys()).sort((one, other) => weights[other] - weights[one] || one - other);
			const rowOf = new Uint32Array(names.length).fill(MOST);
			order.slice(0, MOST).forEach((of, row) => { rowOf[of] = row; });
			const labels = order.slice(0, MOST).map((of) => names[of]);
			if (order.length > MOST)
				labels.push(`${order.length - MOST} others`);
			return {column, rowOf, labels};
		};
		if (this.rows === "task")
			return heaviest(recording.task, recording.tasks.map(({pid, comm}) => `${comm} ${pid}`));
		if (this.rows === "event")
			return heaviest(recording.event, recording.events);
		const cpus = [...new Set(recording.cpu)].sort((one, other) => one - other);
		const share = Math.max(1, Math.ceil(cpus.length / MAX_ROWS));
		const rowOf = new Map(cpus.map((cpu, index) => [cpu, Math.floor(index / share)]));
		const labels = [];
		for (let index = 0; index < cpus.length; index += share) {
			const last = cpus[Math.min(index + share, cpus.length) - 1];
			labels.push(last === cpus[index] ? `CPU ${last}` : `CPU ${cpus[index]} to ${last}`);
		}
		// By number, as the others.
		const numbers = recording.cpu.map((cpu) => rowOf.get(cpu));
		return {column: numbers, rowOf: Uint32Array.from(labels.keys()), labels};
	}

	// Weighs the cells.
	count() {
		const {recording, step} = this;
		const offsets = this.rows === "offset";
		if (!offsets && this.ordered !== this.rows) {
			this.orders = this.order();
			this.ordered = this.rows;
		}
		this.labels = offsets ? Array.from({length: OFFSETS}, () => "") : this.orders.labels;
		const nrRows = this.labels.length || 1;
		this.cells = new Float64Array(this.columns * nrRows);
		const end = recording.find(this.to + 1);
		for (let row = recording.find(this.from); row < end; row++) {
			const time = recording.time[row] - this.from;
			const of = offsets ? Math.floor(time % step / (step / OFFSETS)) : this.orders.rowOf[this.orders.column[row]];
			this.cells[Math.floor(time / step) * nrRows + of] += recording.weight ? recording.weight[row] : 1;
		}
		this.most = this.cells.reduce((most, cell) => Math.max(most, cell), 0);
	}

	// What one unit of the keyboard and of the mouse is: a column, or a cell of one.
	get unit() {
		return this.rows === "offset" ? this.step / OFFSETS : this.step;
	}

	// The unit at a place of the canvas.
	unitAt(x, y) {
		const {width, height} = this.size();
		const column = Math.floor((x - LEFT) / (width - LEFT) * this.columns);
		const clamped = Math.min(Math.max(column, 0), this.columns - 1);
		if (this.rows !== "offset")
			return clamped;
		const row = OFFSETS - 1 - Math.floor(y / (height - BELOW) * OFFSETS);
		return clamped * OFFSETS + Math.min(Math.max(row, 0), OFFSETS - 1);
	}

	size() {
		return {width: this.canvas.clientWidth, height: this.canvas.clientHeight};
	}

	// Selects from one unit to another.
	choose(one, other) {
		const low = Math.min(one, other), high = Math.max(one, other);
		const from = Math.max(0, this.from + low * this.unit);
		this.range = {from, to: Math.max(from, Math.min(this.to, this.from + (high + 1) * this.unit - 1))};
		this.draw();
		this.select(this.range);
	}

	all() {
		this.range = null;
		this.draw();
		this.select(null);
	}

	press(event) {
		if (event.button !== 0)
			return;
		this.canvas.setPointerCapture(event.pointerId);
		this.cursor = this.unitAt(event.offsetX, event.offsetY);
		if (!event.shiftKey)
			this.anchor = this.cursor;
		this.choose(this.anchor, this.cursor);
	}

	move(event) {
		const unit = this.unitAt(event.offsetX, event.offsetY);
		if (!(event.buttons & 1) || unit === this.cursor)
			return;
		this.cursor = unit;
		this.choose(this.anchor, this.cursor);
	}

	key(event) {
		const side = this.rows === "offset" ? OFFSETS : 1;
		const last = this.columns * side - 1;
		const to = {
			ArrowLeft: this.cursor - side, ArrowRight: this.cursor + side, Home: 0, End: last,
			...(side > 1 ? {ArrowUp: this.cursor + 1, ArrowDown: this.cursor - 1} : {}),
		}[event.key];
		if (to !== undefined) {
			// The first arrow key selects where it is.
			this.cursor = this.range || !event.key.startsWith("Arrow") ? Math.min(Math.max(to, 0), last) : this.cursor;
			if (!event.shiftKey)
				this.anchor = this.cursor;
			this.choose(this.anchor, this.cursor);
		} else if (event.key === "Escape") {
			this.all();
		} else if (event.key === "Enter") {
			this.closer();
		} else if (event.key === "Backspace") {
			this.wider();
		} else {
			return;
		}
		event.preventDefault();
	}

	closer() {
		if (this.range)
			this.show(this.range.from, this.range.to);
	}

	wider() {
		this.show(0, this.recording.last);
	}

	// How much a column or a cell is, and what the hottest cell has.
	scaleText() {
		const time = (of) => this.recording.meta.ticks ? `${of} ticks` :
			of >= 1e6 ? `${of / 1e6} s` : of >= 1e3 ? `${of / 1e3} ms` : `${of} us`;
		const rows = this.rows === "offset" ? `, a cell ${time(this.unit)}` : "";
		return `a column is ${time(this.step)}${rows}; the hottest cell has ${numberText(this.most)} ${this.recording.meta.unit}`;
	}

	draw() {
		const {width, height} = this.size();
		const context = fit(this.canvas, width, height);
		const style = getComputedStyle(this.canvas);
		const nrRows = this.labels.length || 1;
		const wide = (width - LEFT) / this.columns, high = (height - BELOW) / nrRows;
		const top = (row) => this.rows === "offset" ? height - BELOW - (row + 1) * high : row * high;
		context.fillStyle = style.getPropertyValue("--bar");
		context.fillRect(LEFT, 0, width - LEFT, height - BELOW);
		const hot = style.getPropertyValue("--hot");
		this.cells.forEach((weight, at) => {
			if (!weight)
				return;
			// One event can be seen beside a thousand.
			const share = 0.12 + 0.88 * Math.log1p(weight) / Math.log1p(this.most);
			context.fillStyle = `rgba(${hot}, ${share.toFixed(3)})`;
			context.fillRect(LEFT + Math.floor(at / nrRows) * wide, top(at % nrRows), Math.max(wide, 1), Math.max(high - 0.5, 1));
		});
		context.font = "11px system-ui, sans-serif";
		context.fillStyle = style.color;
		context.textBaseline = "middle";
		if (high >= 5) {
			// Where rows are low, some are named.
			const each = Math.ceil(12 / high);
			this.labels.forEach((label, row) => {
				if (row % each === 0)
					context.fillText(cut(context, shown(label), LEFT - 10), 0, top(row) + high / 2);
			});
		}
		context.textBaseline = "bottom";
		const ends = [this.from, Math.max(this.to, this.from)].map((time) => this.recording.timeText(time));
		context.fillText(ends[0], LEFT, height);
		context.textAlign = "right";
		context.fillText(ends[1], width, height);
		if (this.range)
			this.frame(context, wide, high, style.getPropertyValue("--focus"));
	}

	// What is selected.
	frame(context, wide, high, color) {
		const nr = this.rows === "offset" ? OFFSETS : 1, full = this.size().height - BELOW;
		const low = Math.floor((this.range.from - this.from) / this.unit);
		const top = Math.floor((this.range.to - this.from) / this.unit);
		context.strokeStyle = context.fillStyle = color;
		for (let column = Math.max(Math.floor(low / nr), 0); column <= Math.min(Math.floor(top / nr), this.columns - 1); column++) {
			const first = Math.max(low - column * nr, 0), last = Math.min(top - column * nr, nr - 1);
			const y = nr > 1 ? full - (last + 1) * high : 0;
			context.globalAlpha = 0.25;
			context.fillRect(LEFT + column * wide, y, wide, nr > 1 ? (last - first + 1) * high : full);
			context.globalAlpha = 1;
			// Thin lines at the ends.
			if (column === Math.floor(low / nr))
				context.fillRect(LEFT + column * wide, 0, 1, full);
			if (column === Math.floor(top / nr))
				context.fillRect(LEFT + (column + 1) * wide - 1, 0, 1, full);
		}
	}
}
