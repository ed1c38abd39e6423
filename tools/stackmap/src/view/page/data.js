// SPDX-License-Identifier: MIT OR Apache-2.0
"use strict";

// The data of the page, as src/view/encode.rs describes it, and what is counted of it.

// Node 0 is the root of every tree; a parent has a lower number than its children.
class Tree {
	// Of each node, its parent and its function.
	constructor(parent, func) {
		this.parent = parent;
		this.func = func;
		const nr = parent.length;
		this.first = new Uint32Array(nr + 1);
		for (let node = 1; node < nr; node++)
			this.first[parent[node] + 1]++;
		for (let node = 0; node < nr; node++)
			this.first[node + 1] += this.first[node];
		this.list = new Uint32Array(nr);
		const next = this.first.slice();
		for (let node = 1; node < nr; node++)
			this.list[next[parent[node]]++] = node;
	}

	children(node) {
		return this.list.subarray(this.first[node], this.first[node + 1]);
	}

	// From the root, which is left out.
	path(node) {
		const path = [];
		for (; node > 0; node = this.parent[node])
			path.push(node);
		return path.reverse();
	}
}

// What the nodes of a tree weigh: SELF without, TOTAL with those below.
class Weights {
	constructor(tree, self) {
		this.self = self;
		this.total = self.slice();
		for (let node = self.length - 1; node > 0; node--)
			this.total[tree.parent[node]] += this.total[node];
	}
}

class Recording {
	constructor(bytes) {
		let at = 0;
		const number = () => {
			let byte = bytes[at++];
			if (byte < 0x80)
				return byte;
			let value = byte & 0x7f;
			for (let scale = 0x80; ; scale *= 0x80) {
				byte = bytes[at++];
				value += (byte & 0x7f) * scale;
				if (byte < 0x80)
					return value;
			}
		};
		const decoder = new TextDecoder();
		const text = () => {
			const length = number();
			at += length;
			return decoder.decode(bytes.subarray(at - length, at));
		};
		const column = (values) => {
			for (let row = 0; row < values.length; row++)
				values[row] = number();
			return values;
		};
		this.meta = JSON.parse(text());
		const nrNames = number();
		this.kinds = new Uint8Array(nrNames);
		this.names = Array.from(this.kinds, (_, name) => {
			this.kinds[name] = number();
			return text();
		});
		const nrNodes = number() + 1;
		const parent = new Uint32Array(nrNodes), func = new Uint32Array(nrNodes);
		for (let node = 1; node < nrNodes; node++) {
			const back = number();
			parent[node] = back ? node - back : 0;
			func[node] = number();
		}
		this.tree = new Tree(parent, func);
		this.events = Array.from({length: number()}, text);
		this.tasks = Array.from({length: number()}, () => ({pid: number(), comm: text()}));
		this.length = number();
		this.time = column(new Float64Array(this.length));
		for (let row = 1; row < this.length; row++)
			this.time[row] += this.time[row - 1];
		this.cpu = column(new Uint32Array(this.length));
		this.event = column(new Uint32Array(this.length));
		this.task = column(new Uint32Array(this.length));
		this.node = column(new Uint32Array(this.length));
		this.weight = this.meta.weighted ? column(new Float64Array(this.length)) : null;
		this.begin = BigInt(this.meta.begin);
		// The whole, before any event at 0: what the events before each one weigh.
		this.before = new Float64Array(this.length + 1);
		for (let row = 0; row < this.length; row++)
			this.before[row + 1] = this.before[row] + (this.weight ? this.weight[row] : 1);
	}

	// The last time of all.
	get last() {
		return this.length ? this.time[this.length - 1] : 0;
	}

	// The first event that is not before a time.
	find(time) {
		let low = 0, high = this.length;
		while (low < high) {
			const middle = (low + high) >>> 1;
			if (this.time[middle] < time)
				low = middle + 1;
			else
				high = middle;
		}
		return low;
	}

	// The event at which a share of the weight of all events is reached.
	at(weight) {
		let low = 0, high = this.length - 1;
		while (low < high) {
			const middle = (low + high) >>> 1;
			if (this.before[middle + 1] <= weight)
				low = middle + 1;
			else
				high = middle;
		}
		return low;
	}

	// What the stacks of events weigh, from one to before another.
	weights(from, to) {
		const self = new Float64Array(this.tree.parent.length);
		for (let row = from; row < to; row++)
			self[this.node[row]] += this.weight ? this.weight[row] : 1;
		return new Weights(this.tree, self);
	}

	// A time as the other commands show it and --time takes it.
	timeText(time) {
		const value = this.begin + BigInt(Math.round(time));
		if (this.meta.ticks)
			return value.toString();
		return `${value / 1000000n}.${(value % 1000000n).toString().padStart(6, "0")}`;
	}

	// Of each node, whether no node above it is of the same function.
	get outermost() {
		if (this.outer)
			return this.outer;
		const {parent, func} = this.tree;
		this.outer = new Uint8Array(parent.length);
		// How many of a function are on the path to the node, which nodes are in the order of.
		const open = new Uint32Array(this.names.length), path = [];
		for (let node = 1; node < parent.length; node++) {
			while (path.length && path[path.length - 1] !== parent[node])
				open[func[path.pop()]]--;
			this.outer[node] = open[func[node]] === 0 ? 1 : 0;
			open[func[node]]++;
			path.push(node);
		}
		return this.outer;
	}

	// Of each function, what it weighs with and without what it calls.
	functions(weights) {
		const total = new Float64Array(this.names.length), self = total.slice();
		const {func} = this.tree;
		for (let node = 1; node < func.length; node++) {
			self[func[node]] += weights.self[node];
			if (this.outermost[node])
				total[func[node]] += weights.total[node];
		}
		return {total, self};
	}

	// What is below a function, or above it: a tree of its own, and its weights.
	around(name, weights, above) {
		const parent = [0], func = [0], self = [0], known = new Map();
		const child = (of, name) => {
			const key = of * this.names.length + name;
			let node = known.get(key);
			if (node === undefined) {
				node = parent.length;
				known.set(key, node);
				parent.push(of);
				func.push(name);
				self.push(0);
			}
			return node;
		};
		const tree = this.tree;
		for (let node = 1; node < tree.func.length; node++) {
			if (tree.func[node] !== name || !this.outermost[node] || !weights.total[node])
				continue;
			if (above) {
				let to = 0;
				for (let from = node; from > 0; from = tree.parent[from])
					to = child(to, tree.func[from]);
				self[to] += weights.total[node];
				continue;
			}
			const open = [[node, child(0, name)]];
			while (open.length) {
				const [from, to] = open.pop();
				self[to] += weights.self[from];
				for (const below of tree.children(from))
					if (weights.total[below])
						open.push([below, child(to, tree.func[below])]);
			}
		}
		const made = new Tree(Uint32Array.from(parent), Uint32Array.from(func));
		return {tree: made, weights: new Weights(made, Float64Array.from(self))};
	}
}

// Reads the recording in an element of the page.
async function read(element) {
	const text = atob(element.textContent.trim());
	element.remove();
	const packed = new Uint8Array(text.length);
	for (let at = 0; at < text.length; at++)
		packed[at] = text.charCodeAt(at);
	const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
	return new Recording(new Uint8Array(await new Response(stream).arrayBuffer()));
}

// Numbers of three digits in a row, and shares.
const numberText = (number) => Math.round(number).toLocaleString("en");
const shareText = (part, whole) => whole ? `${(100 * part / whole).toFixed(1)} %` : "0.0 %";
