// SPDX-License-Identifier: GPL-2.0

// For `steps.rs`: generic code, trait objects, closures, panics that are caught.
use std::{collections::HashMap, panic};

trait Shape {
    fn area(&self) -> u64;
}

struct Square(u64);
struct Circle(u64);

impl Shape for Square {
    fn area(&self) -> u64 {
        self.0 * self.0
    }
}

impl Shape for Circle {
    fn area(&self) -> u64 {
        panic::catch_unwind(|| {
            assert!(cfg!(not(panics)) || self.0 % 5 != 0, "a multiple of five");
            3 * self.0 * self.0
        })
        .unwrap_or(self.0)
    }
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let shapes: Vec<Box<dyn Shape>> = (0..12)
        .map(|nr| match nr % 2 {
            0 => Box::new(Square(nr)) as Box<dyn Shape>,
            _ => Box::new(Circle(nr)),
        })
        .collect();
    let mut areas: HashMap<String, u64> = HashMap::new();
    for (nr, shape) in shapes.iter().enumerate() {
        *areas.entry(format!("{}", nr % 5)).or_default() += shape.area();
    }
    let mut sorted: Vec<_> = areas.into_iter().collect();
    sorted.sort_by_key(|(name, area)| (*area, name.clone()));
    println!("{sorted:?}");
}
