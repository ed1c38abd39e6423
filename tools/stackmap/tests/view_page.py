# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a page of "stackmap view" shows in a browser, and what it should show of the events and stacks of other commands."""

import collections
import math

# As Documentation/stackmap-view.rst has them: the columns of the heat map, and the rows of the table of functions.
COLUMNS, MAX_FUNCTIONS = 240, 500
# The rows of offsets, and how many tasks or events have a row of their own.
OFFSETS, MOST = 25, 12
# Narrower frames are not drawn.
LEAST = 0.4
# The colours of the heat map where light ones are preferred: of nothing, and of the hottest cell.
COLD, HOT = (240, 240, 240), (178, 34, 10)

# Keeps what draws the heat map and the graphs, when it does.
WATCH = """
(() => {
    window.drawn = {};
    for (const [of, name] of [[Heat, () => "heat"], [Flame, (flame) => flame.box.id]]) {
        const draw = of.prototype.draw;
        of.prototype.draw = function () {
            drawn[name(this)] = this;
            draw.call(this);
        };
    }
})()
"""
# Labels, cells column by column, and the colour in the middle of each.
HEAT = """
(({labels, cells, columns, canvas}) => {
    const nr = cells.length / columns, wide = (canvas.width - 150) / columns, high = (canvas.height - 16) / nr;
    const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const up = document.getElementById("rows").value === "offset";
    const colors = [...cells].map((_, cell) => {
        const row = up ? nr - 1 - cell % nr : cell % nr;
        const x = Math.floor(150 + (Math.floor(cell / nr) + 0.5) * wide), y = Math.floor((row + 0.5) * high);
        return [...data.subarray(4 * (y * width + x), 4 * (y * width + x) + 3)];
    });
    const column = (_, at) => [...cells.slice(at * nr, (at + 1) * nr)];
    return {labels, colors, cells: Array.from({length: columns}, column)};
})(drawn.heat)
"""
# Names and weights of the frames of each depth.
FRAMES = """
(({rows, view, recording: {names}}) =>
    rows.map((row) => row.map(({node, value}) => [names[view.tree.func[node]], value]))
)(drawn.graph)
"""
# Which names have frames of which colour.
COLORS = """
(({rows, view, canvas, recording: {names}}) => {
    const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), found = new Set();
    rows.forEach((row, depth) => row.filter(({x0, x1}) => x1 - x0 > 4).forEach(({node, x0}) => {
        const at = 4 * (Math.floor((depth + 0.5) * 18) * width + Math.ceil(x0) + 1);
        found.add(JSON.stringify([names[view.tree.func[node]], `rgb(${data.slice(at, at + 3).join(", ")})`]));
    }));
    return [...found].map(JSON.parse);
})(drawn.graph)
"""
# What is said of the selection, which a key moves so often from the first column or cell on. The graphs need not be drawn.
MOVED = """
(() => {
    const {layout} = Flame.prototype;
    Flame.prototype.layout = () => {};
    const texts = [...Array(%d)].map((_, turn) => {
        if (turn)
            document.getElementById("heat").dispatchEvent(new KeyboardEvent("keydown", {key: "%s"}));
        return document.getElementById("selection").textContent;
    });
    Flame.prototype.layout = layout;
    return texts;
})()
"""

Event = collections.namedtuple("Event", "time cpu task event weight")


def events_of(export, field=None):
    """The events of an export as JSON that have a field, or all, with their times in microseconds."""
    return [Event(int(event["time"].replace(".", "")), f"CPU {event['cpu']}", f"{event['comm']} {event['pid']}", event["event"],
                  event["values"][field] if field else 1)
            for event in export["events"] if not field or field in event["values"]]


class Grid:
    """The heat map of events from one time to another: how much a column is, its rows and its cells."""

    def __init__(self, events, rows, first, last):
        self.rows, self.last = rows, last
        self.step = math.ceil((last - first + 1) / COLUMNS)
        if rows == "offset":
            self.step = offset_step(self.step)
            begin = min(event.time for event in events)
            first -= (first - begin) % self.step
        self.first = first
        weights = collections.Counter()
        for event in events:
            weights["" if rows == "offset" else getattr(event, rows)] += event.weight
        # Of the same weight, the first one comes first.
        self.labels = sorted(weights, key=lambda name: -weights[name])
        if rows == "cpu":
            self.labels.sort(key=lambda name: int(name.removeprefix("CPU ")))
        elif rows == "offset":
            self.labels = [""] * OFFSETS
        elif len(self.labels) > MOST:
            self.labels[MOST:] = [f"{len(self.labels) - MOST} others"]
        row_of = {name: row for row, name in enumerate(self.labels)}
        self.cells = [[0] * len(self.labels) for _ in range(math.ceil((last - first + 1) / self.step))]
        # How many events each column has, and each cell, whatever they weigh.
        self.counts = collections.Counter()
        for event in events:
            if first <= event.time <= last:
                column, offset = divmod(event.time - first, self.step)
                row = offset * OFFSETS // self.step if rows == "offset" else row_of.get(getattr(event, rows), MOST)
                self.cells[column][row] += event.weight
                self.counts[column * OFFSETS + row if rows == "offset" else column] += 1

    def scale(self, unit):
        """What is said of it."""
        cell = f", a cell {time_text(self.step // OFFSETS)}" if self.rows == "offset" else ""
        return f"a column is {time_text(self.step)}{cell}; the hottest cell has {max(map(max, self.cells)):,} {unit}"

    def colors(self):
        """The colour of each cell."""
        hottest = math.log1p(max(map(max, self.cells)))
        shares = [0.12 + 0.88 * math.log1p(weight) / hottest if weight else 0 for column in self.cells for weight in column]
        return [[cold + (hot - cold) * share for cold, hot in zip(COLD, HOT, strict=True)] for share in shares]

    def units(self, weighted):
        """What is said of the events of each column, or of each cell with rows of offsets: how many, their weight, times."""
        weights = [[weight] for column in self.cells for weight in column] if self.rows == "offset" else self.cells
        unit = self.step // OFFSETS if self.rows == "offset" else self.step
        begins = (self.first + number * unit for number in range(len(weights)))
        return [(self.counts[number], sum(weight) if weighted else None, begin, min(begin + unit - 1, self.last))
                for number, (begin, weight) in enumerate(zip(begins, weights, strict=True))]


def offset_step(least):
    """How much a column of offsets is: 1, 2 or 5 of a power of ten, of which each offset is a whole number."""
    least = max(least, OFFSETS)
    power = 10 ** (len(str(least)) - 1)
    fitting = (step * power for step in (1, 2, 5, 10) if step * power >= least and step * power % OFFSETS == 0)
    return next(fitting, OFFSETS * math.ceil(least / OFFSETS))


def time_text(micros):
    """A time with its unit."""
    for unit, name in ((1_000_000, "s"), (1000, "ms")):
        if micros >= unit:
            return f"{micros / unit:.10g} {name}"
    return f"{micros} us"


def left_heavy(stacks, width, path=()):
    """The frames of each depth, from the left, and what they weigh: those of a path, and those below it."""
    totals, below = collections.Counter(), collections.defaultdict(set)
    for stack, count in stacks:
        for depth in range(len(stack) + 1):
            totals[tuple(stack[:depth])] += count
        for depth, name in enumerate(stack):
            below[tuple(stack[:depth])].add(name)
    path = tuple(path)
    rows = collections.defaultdict(list)
    for depth, name in enumerate(path):
        rows[depth].append([name, totals[path[:depth + 1]]])

    def add(above):
        for name in sorted(below[above], key=lambda name: (-totals[*above, name], name)):
            if totals[*above, name] * width / totals[path] >= LEAST:
                rows[len(above)].append([name, totals[*above, name]])
                add((*above, name))

    add(path)
    return list(rows.values())


def totals(stacks):
    """What each function weighs, with and without what it calls."""
    total, self = collections.Counter(), collections.Counter()
    for stack, count in stacks:
        self[stack[-1]] += count
        for name in set(stack):
            total[name] += count
    return {name: (count, self[name]) for name, count in total.items()}


def table(stacks, column=0):
    """The table of functions, by a column: name, and what it weighs with and without what it calls."""
    rows = sorted(totals(stacks).items(), key=lambda row: (-row[1][column], row[0]))
    return rows[:MAX_FUNCTIONS]
