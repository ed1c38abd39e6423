// SPDX-License-Identifier: MIT OR Apache-2.0

//! Trees of calls: stacks that begin alike, merged as far as they do.

use crate::{
    error::Result,
    filter::Glob,
    folded::{Folded, Names},
    output::{safe, Out, DIM, NUMBER, TITLE},
    symbols::{frames, texts::ByNumber},
    table::percent,
    weight::Unit,
};
use std::{cmp::Reverse, io::Write};

/// How far to the right a function stands at most: no line is made for that many columns.
const MAX_COLUMN: usize = 512;

/// What stands for what is not in any of the functions that follow.
const ITSELF: &str = "(itself)";

/// Where the stacks of a tree begin, and which way they go.
#[derive(Clone, Debug)]
pub enum Root {
    /// At their outermost frames, to the functions that these call.
    Outermost,
    /// At their innermost frames, to the callers.
    Innermost,
    /// At the innermost frame of such a function, to its callers.
    Callers(Glob),
    /// At the outermost frame of such a function, to what it calls.
    Callees(Glob),
}

/// How much of a tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Branches with a smaller share of their group are left out, in percent.
    pub share: f64,
    /// Frames from the root on; 0: all.
    pub depth: usize,
}

/// A function that is reached in one way.
#[derive(Debug, Default)]
struct Node {
    frame: u32,
    sum: u64,
    /// The numbers of those that follow.
    next: Vec<u32>,
}

/// The calls of stacks that have something in common.
#[derive(Debug)]
pub struct Tree {
    /// Its name.
    group: Option<u32>,
    /// The first one is no function: those that follow it are the roots.
    nodes: Vec<Node>,
}

impl Tree {
    fn new(group: Option<u32>) -> Self {
        Self {
            group,
            nodes: vec![Node::default()],
        }
    }

    fn add(
        &mut self,
        frames: impl Iterator<Item = u32>,
        count: u64,
        known: &mut ByNumber<(u32, u32), u32>,
    ) {
        let mut at = 0;
        self.nodes[0].sum = self.nodes[0].sum.saturating_add(count);
        for frame in frames {
            let nodes = &mut self.nodes;
            let next = *known.entry((at, frame)).or_insert_with(|| {
                let number = nodes.len() as u32;
                nodes[at as usize].next.push(number);
                nodes.push(Node {
                    frame,
                    ..Node::default()
                });
                number
            });
            let node = &mut nodes[next as usize];
            node.sum = node.sum.saturating_add(count);
            at = next;
        }
    }

    /// What it has in all.
    pub fn sum(&self) -> u64 {
        self.nodes[0].sum
    }

    /// Orders what follows each function: what weighs most comes first.
    fn sort(&mut self, names: &Names) {
        for number in 0..self.nodes.len() {
            let mut next = std::mem::take(&mut self.nodes[number].next);
            next.sort_by_cached_key(|number| {
                let node = &self.nodes[*number as usize];
                (Reverse(node.sum), names.get(node.frame).0.to_owned())
            });
            self.nodes[number].next = next;
        }
    }
}

/// The trees of stacks, by what they have in common: those first that weigh most. `is_grouped`: the first frame of each
/// stack names that. Stacks in which there is no root are in none.
pub fn trees(folded: &Folded, is_grouped: bool, root: &Root, names: &Names) -> Vec<Tree> {
    let is_root = match root {
        Root::Callers(function) | Root::Callees(function) => {
            names.map(|name, _| function.matches(name) || function.matches(frames::parts(name).0))
        }
        _ => Vec::new(),
    };
    let is_root = |frame: &u32| is_root[*frame as usize];
    let mut trees: Vec<Tree> = Vec::new();
    let mut numbers = ByNumber::<u32, usize>::default();
    let mut known: Vec<ByNumber<(u32, u32), u32>> = Vec::new();
    let mut stack = Vec::new();
    for (frames, count) in folded.iter() {
        stack.clear();
        stack.extend(frames.iter());
        let (group, calls) = stack.split_at(usize::from(is_grouped).min(stack.len()));
        let group = group.first().copied();
        let calls = match root {
            Root::Outermost | Root::Innermost => calls,
            Root::Callers(_) => match calls.iter().rposition(is_root) {
                Some(at) => &calls[..=at],
                None => continue,
            },
            Root::Callees(_) => match calls.iter().position(is_root) {
                Some(at) => &calls[at..],
                None => continue,
            },
        };
        let number = *numbers.entry(group.unwrap_or(0)).or_insert_with(|| {
            trees.push(Tree::new(group));
            known.push(ByNumber::default());
            trees.len() - 1
        });
        let (tree, known) = (&mut trees[number], &mut known[number]);
        match root {
            Root::Outermost | Root::Callees(_) => tree.add(calls.iter().copied(), count, known),
            _ => tree.add(calls.iter().rev().copied(), count, known),
        }
    }
    trees.iter_mut().for_each(|tree| tree.sort(names));
    let name = |tree: &Tree| tree.group.map(|group| names.get(group).0.to_owned());
    trees.sort_by_cached_key(|tree| (Reverse(tree.sum()), name(tree)));
    trees
}

/// Writes trees: a line for each function with its share of the group, one that it calls alone below it without
/// a number.
pub fn write(out: &mut Out, trees: &[Tree], names: &Names, unit: &Unit, limits: Limits) -> Result {
    for tree in trees {
        match tree.group {
            Some(group) => {
                let group = out.style(TITLE, safe(names.get(group).0).into_owned());
                writeln!(out, "\n{group}: {}", unit.text(tree.sum()))?;
            }
            None => writeln!(out)?,
        }
        write_tree(out, tree, names, unit, limits)?;
    }
    Ok(())
}

/// What is left to write.
enum Line {
    /// A function.
    Function {
        number: u32,
        /// How many frames there are from the root to it.
        depth: usize,
        /// How far to the right it stands.
        column: usize,
        /// All that reaches the function above it goes on to this one.
        goes_on: bool,
    },
    /// What is below a function and has no line of its own: a text, a sum, and how far to the right.
    Rest(String, u64, usize),
}

fn write_tree(out: &mut Out, tree: &Tree, names: &Names, unit: &Unit, limits: Limits) -> Result {
    let all = tree.sum();
    let mut left = Vec::new();
    push_next(&mut left, tree, 0, (0, 0), limits);
    while let Some(line) = left.pop() {
        let (text, sum, column) = match line {
            Line::Rest(text, sum, column) => (out.style(DIM, text).to_string(), sum, column),
            Line::Function {
                number,
                depth,
                column,
                goes_on,
            } => {
                let node = &tree.nodes[number as usize];
                let mut name = safe(names.get(node.frame).0).into_owned();
                if limits.depth == 0 || depth < limits.depth {
                    push_next(&mut left, tree, number, (depth, column), limits);
                } else if !node.next.is_empty() {
                    name = format!("{name} {}", out.style(DIM, "... (--depth)"));
                }
                if goes_on {
                    writeln!(out, "{:18}{:column$}{name}", "", "")?;
                    continue;
                }
                (name, node.sum, column)
            }
        };
        let share = out.style(NUMBER, format!("{:5.1} %", percent(sum, all)));
        let sum = unit.cell(sum);
        writeln!(out, " {share}  {sum:>6}  {:column$}{text}", "")?;
    }
    Ok(())
}

/// Pushes what follows a node that is so deep and so far to the right; what comes last is written first.
fn push_next(
    left: &mut Vec<Line>,
    tree: &Tree,
    number: u32,
    (depth, column): (usize, usize),
    limits: Limits,
) {
    let node = &tree.nodes[number as usize];
    let sum_of = |number: &u32| tree.nodes[*number as usize].sum;
    let add = |nodes: &[u32]| nodes.iter().map(sum_of).fold(0, u64::saturating_add);
    let is_shown = |sum: u64| percent(sum, tree.sum()) >= limits.share;
    // They are in order.
    let nr_shown = node.next.partition_point(|number| is_shown(sum_of(number)));
    let (shown, hidden) = node.next.split_at(nr_shown);
    let goes_on = depth > 0 && shown.len() == 1 && sum_of(&shown[0]) == node.sum;
    let column = match goes_on || depth == 0 {
        true => column,
        false => (column + 2).min(MAX_COLUMN),
    };
    if !hidden.is_empty() {
        let text = format!("... {} more (--min)", hidden.len());
        left.push(Line::Rest(text, add(hidden), column));
    }
    let own = node.sum.saturating_sub(add(&node.next));
    if own > 0 && !node.next.is_empty() {
        left.push(Line::Rest(ITSELF.to_owned(), own, column));
    }
    left.extend(shown.iter().rev().map(|number| Line::Function {
        number: *number,
        depth: depth + 1,
        column,
        goes_on,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{folded::tests::folded, output::tests::written};

    fn shown(stacks: &[(&str, u64)], is_grouped: bool, root: &Root, limits: Limits) -> String {
        let mut names = Names::default();
        let folded = folded(stacks, &mut names);
        let trees = trees(&folded, is_grouped, root, &names);
        written(|out| write(out, &trees, &names, &Unit::Events, limits))
    }

    const ALL: Limits = Limits {
        share: 0.0,
        depth: 0,
    };

    fn function(name: &str) -> Glob {
        Glob::of_name(name).unwrap()
    }

    const STACKS: [(&str, u64); 4] = [("a,b,c", 60), ("a,b,d,e", 25), ("a", 10), ("f", 5)];

    #[test]
    fn a_function_that_calls_itself_is_counted_once() {
        let stacks = [("a,r,r,b", 3), ("c,r,d", 2), ("c,e [m]", 1)];
        let callers = Root::Callers(function("r"));
        let want = "
 100.0 %       5  r
  60.0 %       3    r
                    a
  40.0 %       2    c
";
        assert_eq!(shown(&stacks, false, &callers, ALL), want);
        let callees = Root::Callees(function("r"));
        let want = "
 100.0 %       5  r
  60.0 %       3    r
                    b
  40.0 %       2    d
";
        assert_eq!(shown(&stacks, false, &callees, ALL), want);
        // Modules are not part of what functions are called.
        let callers = Root::Callers(function("e"));
        let want = "\n 100.0 %       1  e [m]\n                  c\n";
        assert_eq!(shown(&stacks, false, &callers, ALL), want);
        assert_eq!(
            shown(&stacks, false, &Root::Callers(function("e [m]")), ALL),
            want
        );
        let nobody = Root::Callees(function("nobody"));
        assert_eq!(shown(&stacks, false, &nobody, ALL), "");
    }

    #[test]
    fn what_is_deep_stays_on_the_screen() {
        let mut stacks = Vec::new();
        let mut stack = "f".to_owned();
        for _ in 0..MAX_COLUMN {
            stacks.push((stack.clone(), 1));
            stack.push_str(",f");
        }
        let stacks: Vec<_> = stacks.iter().map(|(stack, nr)| (&stack[..], *nr)).collect();
        let text = shown(&stacks, false, &Root::Outermost, ALL);
        let longest = text.lines().map(str::len).max().unwrap();
        assert_eq!(longest, 18 + MAX_COLUMN + ITSELF.len());
        assert_eq!(text.matches(ITSELF).count(), MAX_COLUMN - 1);
    }

    #[test]
    fn what_weighs_the_same_is_in_the_order_of_names() {
        let stacks = [("y,b", 1), ("y,a", 1), ("x,d", 1), ("x,c", 1)];
        let want = "
x: 2 events
  50.0 %       1  c
  50.0 %       1  d

y: 2 events
  50.0 %       1  a
  50.0 %       1  b
";
        assert_eq!(shown(&stacks, true, &Root::Outermost, ALL), want);
        // What names a group is no function.
        let callers = Root::Callers(function("y"));
        assert_eq!(shown(&stacks, true, &callers, ALL), "");
    }

    #[test]
    fn limits_are_of_what_there_is() {
        // A share that is the least one, and functions that call nothing.
        let limits = Limits {
            share: 5.0,
            depth: 1,
        };
        let want = "\n  95.0 %      95  a ... (--depth)\n   5.0 %       5  f\n";
        assert_eq!(shown(&STACKS, false, &Root::Outermost, limits), want);
    }

    #[test]
    fn sums_stay_at_the_greatest_number() {
        let stacks = [("a,b", u64::MAX), ("a,c", 5), ("a", 1)];
        let max = u64::MAX;
        let want = format!("\n 100.0 %  {max}  a\n 100.0 %  {max}    b\n   0.0 %       5    c\n");
        assert_eq!(shown(&stacks, false, &Root::Outermost, ALL), want);
        let limits = Limits { share: 1.0, ..ALL };
        let stacks = [("a", max), ("b", 5), ("c", max >> 8), ("d", max >> 8)];
        let hidden = (max >> 7) + 4;
        let want = format!("\n 100.0 %  {max}  a\n   0.8 %  {hidden}  ... 3 more (--min)\n");
        assert_eq!(shown(&stacks, false, &Root::Outermost, limits), want);
    }

    #[test]
    fn names_in_trees_do_not_control_the_terminal() {
        let stacks = [("g\x1b[2J,a\r\u{202e}", 1)];
        let want = "\ng\u{fffd}[2J: 1 event\n 100.0 %       1  a\u{fffd}\u{fffd}\n";
        assert_eq!(shown(&stacks, true, &Root::Outermost, ALL), want);
    }

    #[test]
    fn a_deep_tree_of_many_functions_is_written() {
        // 10,000 frames, and a function that calls 10,000 others.
        let deep: Vec<_> = (0..10_000).map(|nr| format!("f{nr}")).collect();
        let deep = deep.join(",");
        let wide: Vec<_> = (0..10_000).map(|nr| format!("g,h{nr}")).collect();
        let mut stacks: Vec<_> = wide.iter().map(|stack| (&stack[..], 1)).collect();
        stacks.push((&deep, 1));
        for root in [Root::Outermost, Root::Callees(function("*"))] {
            let text = shown(&stacks, false, &root, ALL);
            assert_eq!(text.lines().count(), 1 + 10_000 + 1 + 10_000);
        }
    }
}
