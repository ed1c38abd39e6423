// SPDX-License-Identifier: GPL-2.0

//! Vectors of the facade do what those of the standard library do, also when memory runs out.

use kernel::{
    alloc::{flags::GFP_KERNEL, AllocError, Allocator, KVVec, KVec, VVec, Vec as Vector},
    bindings,
};
use proptest::prelude::*;
use std::{cell::Cell, fmt::Debug, iter, rc::Rc};

/// A call of a vector.
#[derive(Clone, Debug)]
enum Call {
    Push(u8),
    PushWithinCapacity(u8),
    InsertWithinCapacity(usize, u8),
    Remove(usize),
    RetainAbove(u8),
    Clear,
    Extend(Vec<u8>),
    Reserve(usize),
    ThroughRawParts,
    RunOutOfMemory(Option<u32>),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        4 => any::<u8>().prop_map(Call::Push),
        2 => any::<u8>().prop_map(Call::PushWithinCapacity),
        2 => (0..20_usize, any::<u8>()).prop_map(|(index, value)| Call::InsertWithinCapacity(index, value)),
        2 => (0..20_usize).prop_map(Call::Remove),
        1 => any::<u8>().prop_map(Call::RetainAbove),
        1 => Just(Call::Clear),
        1 => proptest::collection::vec(any::<u8>(), 0..20).prop_map(Call::Extend),
        1 => prop_oneof![0..40_usize, Just(usize::MAX), Just(isize::MAX as usize)].prop_map(Call::Reserve),
        1 => Just(Call::ThroughRawParts),
        1 => proptest::option::of(0..3_u32).prop_map(Call::RunOutOfMemory),
    ];
    proptest::collection::vec(call, 0..60)
}

/// A value that counts how many of its kind there are.
#[derive(Debug)]
struct Counted(u8, Rc<Cell<usize>>);

impl Counted {
    fn new(value: u8, count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(value, count.clone())
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(self.0, &self.1)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.set(self.1.get() - 1);
    }
}

/// More aligned than the kernel's memory is of itself, and of a size that is no power of two.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct Aligned([u8; 150]);

/// Makes the calls with both vectors, which must agree. `key` is what tells values apart.
fn compare<T: Clone + Debug, A: Allocator>(
    calls: &[Call],
    make: impl Fn(u8) -> T,
    key: impl Fn(&T) -> u8,
) {
    let mut vector: Vector<T, A> = Vector::new();
    let mut model: Vec<T> = Vec::new();
    for call in calls {
        let grown = match call {
            Call::Push(value) => grow(
                &mut model,
                iter::once(make(*value)),
                vector.push(make(*value), GFP_KERNEL),
            ),
            Call::PushWithinCapacity(value) => {
                let pushed = vector.push_within_capacity(make(*value)).map_err(|error| {
                    assert_eq!(key(&error.0), key(&make(*value)));
                    AllocError
                });
                grow(&mut model, iter::once(make(*value)), pushed)
            }
            Call::InsertWithinCapacity(index, value) => {
                if vector.insert_within_capacity(*index, make(*value)).is_ok() {
                    model.insert(*index, make(*value));
                } else if *index <= model.len() {
                    assert!(
                        vector.push_within_capacity(make(*value)).is_err(),
                        "only a full vector refuses"
                    );
                }
                Ok(())
            }
            Call::Remove(index) => {
                let removed = vector.remove(*index).ok().map(|value| key(&value));
                let wanted = (*index < model.len()).then(|| key(&model.remove(*index)));
                assert_eq!(removed, wanted);
                Ok(())
            }
            Call::RetainAbove(least) => {
                vector.retain(|value| key(value) > *least);
                model.retain(|value| key(value) > *least);
                Ok(())
            }
            Call::Clear => {
                vector.clear();
                model.clear();
                Ok(())
            }
            Call::Extend(values) => {
                let values: Vec<T> = values.iter().map(|value| make(*value)).collect();
                let extended = vector.extend_from_slice(&values, GFP_KERNEL);
                grow(&mut model, values.into_iter(), extended)
            }
            Call::Reserve(additional) => {
                let reserved = vector.reserve(*additional, GFP_KERNEL);
                if reserved.is_ok() && *additional < 100 {
                    let values = iter::repeat_n(make(7), *additional);
                    values
                        .clone()
                        .for_each(|value| assert!(vector.push_within_capacity(value).is_ok()));
                    model.extend(values);
                }
                reserved
            }
            Call::ThroughRawParts => {
                let (ptr, len, capacity) = vector.into_raw_parts();
                // SAFETY: Just given away, and taken back once.
                vector = unsafe { Vector::from_raw_parts(ptr, len, capacity) };
                Ok(())
            }
            Call::RunOutOfMemory(after) => {
                bindings::fail_after(*after);
                Ok(())
            }
        };
        let _ = grown;
        assert!(vector.as_ptr().is_aligned());
        let keys = |values: &[T]| values.iter().map(&key).collect::<Vec<_>>();
        assert_eq!(keys(&vector), keys(&model), "after {call:?}");
    }
    bindings::fail_after(None);
}

/// Adds values to the model where the vector has taken them.
fn grow<T>(
    model: &mut Vec<T>,
    values: impl Iterator<Item = T>,
    taken: Result<(), AllocError>,
) -> Result<(), AllocError> {
    taken.inspect(|()| model.extend(values))
}

proptest! {
    #[test]
    fn bytes_in_memory_of_kmalloc(calls in calls()) {
        compare::<u8, kernel::alloc::Kmalloc>(&calls, |value| value, |value| *value);
        prop_assert_eq!(bindings::allocated(), 0);
    }

    #[test]
    fn values_are_dropped_once(calls in calls()) {
        let count = Rc::new(Cell::new(0));
        compare::<Counted, kernel::alloc::Vmalloc>(&calls, |value| Counted::new(value, &count), |value| value.0);
        prop_assert_eq!(count.get(), 0);
        prop_assert_eq!(bindings::allocated(), 0);
    }

    #[test]
    fn values_with_an_alignment(calls in calls()) {
        compare::<Aligned, kernel::alloc::KVmalloc>(&calls, |value| Aligned([value; 150]), |value| value.0[149]);
        prop_assert_eq!(bindings::allocated(), 0);
    }

    #[test]
    fn values_without_a_size_need_no_memory(calls in calls()) {
        compare::<(), kernel::alloc::Kmalloc>(&calls, |_| (), |()| 0);
        prop_assert_eq!(bindings::allocated(), 0);
    }
}

#[test]
fn a_vector_grows_by_doubling() {
    let mut vector = KVec::new();
    let mut moves = 0;
    let mut last = vector.as_ptr();
    for value in 0..1000_u32 {
        vector.push(value, GFP_KERNEL).unwrap();
        moves += u32::from(vector.as_ptr() != last);
        last = vector.as_ptr();
    }
    assert!(moves <= 11, "{moves} times");
}

#[test]
fn a_capacity_that_no_memory_has_is_an_error() {
    assert!(KVec::<u64>::with_capacity(usize::MAX / 4, GFP_KERNEL).is_err());
    assert!(KVec::<u8>::with_capacity(isize::MAX as usize + 1, GFP_KERNEL).is_err());
    assert!(VVec::<Aligned>::with_capacity(isize::MAX as usize / 100, GFP_KERNEL).is_err());
    let more = bindings::KMALLOC_MAX_SIZE + 1;
    assert!(KVec::<u8>::with_capacity(more, GFP_KERNEL).is_err());
    assert!(VVec::<u8>::with_capacity(more, GFP_KERNEL).is_ok());
    assert!(KVVec::<u8>::with_capacity(more, GFP_KERNEL).is_ok());
    assert_eq!(bindings::allocated(), 0);
}

#[test]
fn counted_memory_that_was_written_elsewhere() {
    let mut vector = KVVec::<u32>::with_capacity(4, GFP_KERNEL).unwrap();
    let (ptr, len, capacity) = vector.into_raw_parts();
    assert_eq!((len, capacity), (0, 4));
    // SAFETY: There is memory for four values; it is taken back once, and two values were written.
    unsafe {
        ptr.write(11);
        ptr.add(1).write(12);
        vector = KVVec::from_raw_parts(ptr, 0, capacity);
        vector.inc_len(2);
    }
    assert_eq!(*vector, [11, 12]);
}
