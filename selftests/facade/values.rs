// SPDX-License-Identifier: GPL-2.0

//! Boxes, references, locks and the rest of the facade.

use kernel::{
    alloc::{flags, flags::GFP_KERNEL, AllocError, KBox},
    bindings,
    error::{code::*, from_err_ptr, to_result, Error},
    fs::File,
    global_lock, new_mutex, pr_err, pr_warn_once,
    prelude::CStrExt,
    seq_file::SeqFile,
    str::{BStr, CString},
    sync::{aref::ARef, rcu, Arc, ArcBorrow, Mutex, SetOnce},
    task::Task,
    uaccess::{UserPtr, UserSlice},
};
use std::{
    cell::{Cell, RefCell},
    iter,
    ptr::NonNull,
    sync::{
        atomic::{AtomicU32, Ordering},
        Barrier,
    },
    thread,
};

/// Counts the values that were dropped.
struct Dropped<'a>(&'a AtomicU32);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_box_drops_its_value_and_frees_its_memory_once() {
    let drops = AtomicU32::new(0);
    let boxed = KBox::new(Dropped(&drops), flags::GFP_NOWAIT).unwrap();
    let raw = KBox::into_raw(boxed);
    assert_eq!(bindings::flags_of(raw as usize), 0x2800);
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    // SAFETY: Just given away.
    drop(unsafe { KBox::from_raw(raw) });
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(bindings::allocated(), 0);
}

#[test]
fn a_value_is_dropped_where_there_is_no_memory() {
    let drops = AtomicU32::new(0);
    bindings::fail_after(Some(0));
    assert_eq!(
        KBox::new(Dropped(&drops), GFP_KERNEL).err(),
        Some(AllocError)
    );
    assert_eq!(
        Arc::new(Dropped(&drops), GFP_KERNEL).err(),
        Some(AllocError)
    );
    assert!(KBox::<u64>::zeroed(GFP_KERNEL).is_err());
    assert_eq!(
        KBox::pin_init(new_mutex!(1), GFP_KERNEL).err(),
        Some(ENOMEM)
    );
    assert!(CString::try_from(c"text").is_err());
    bindings::fail_after(None);
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

#[test]
fn a_box_of_zeros() {
    let mut boxed = KBox::<[u64; 100]>::zeroed(GFP_KERNEL).unwrap();
    assert_eq!(*boxed, [0; 100]);
    boxed[99] = 1;
    assert_eq!(boxed[99], 1);
}

#[test]
fn the_last_reference_drops_the_value() {
    let drops = AtomicU32::new(0);
    let shared = Arc::new((Dropped(&drops), 17_u64), GFP_KERNEL).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            let shared = shared.clone();
            scope.spawn(move || {
                for _ in 0..1000 {
                    let raw = Arc::into_raw(shared.clone());
                    // SAFETY: Just given away; the borrow ends before the reference is taken back.
                    let taken = unsafe {
                        let again = Arc::from(ArcBorrow::from_raw(raw));
                        drop(again);
                        Arc::from_raw(raw)
                    };
                    assert_eq!(taken.1, 17);
                }
            });
        }
    });
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(shared);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(bindings::allocated(), 0);
}

#[test]
fn one_task_at_a_time_has_the_value_of_a_mutex() {
    let mutex = KBox::pin_init(new_mutex!(0_u64), GFP_KERNEL).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let mut value = mutex.lock();
                    let old = *value;
                    thread::yield_now();
                    *value = old + 1;
                }
            });
        }
    });
    assert_eq!(*mutex.lock(), 4000);
}

global_lock! {
    /// A static mutex.
    unsafe(uninit) static GLOBAL: Mutex<u32> = 3;
}

#[test]
fn a_static_mutex() {
    // SAFETY: Once, and before it is locked.
    unsafe { GLOBAL.init() };
    *GLOBAL.lock() += 1;
    assert_eq!(*GLOBAL.lock(), 4);
}

#[test]
fn each_place_that_makes_mutexes_has_a_lock_class() {
    let class = |mutex: &Mutex<u8>| {
        // SAFETY: The C structure is the first field, and initialised.
        unsafe { bindings::class_of(std::ptr::from_ref(mutex).cast()) }
    };
    let [first, second] =
        [1, 2].map(|value| KBox::pin_init(new_mutex!(value), GFP_KERNEL).unwrap());
    let other = KBox::pin_init(new_mutex!(3), GFP_KERNEL).unwrap();
    assert_eq!(class(&first), class(&second));
    assert_ne!(class(&first), class(&other));
}

#[test]
fn a_value_is_set_once_and_seen_whole() {
    for _ in 0..300 {
        let once = SetOnce::new();
        let sets = AtomicU32::new(0);
        let start = Barrier::new(4);
        assert_eq!(once.copy(), None);
        thread::scope(|scope| {
            for value in 1..=4_u64 {
                let (once, sets, start) = (&once, &sets, &start);
                scope.spawn(move || {
                    start.wait();
                    sets.fetch_add(u32::from(once.populate([value; 4096])), Ordering::Relaxed);
                    let values = iter::repeat_with(|| once.copy()).find_map(|values| values);
                    assert!(
                        values.is_some_and(|values| values.iter().all(|other| *other == values[0]))
                    );
                });
            }
        });
        assert_eq!(sets.into_inner(), 1);
        let before = once.copy();
        assert!(!once.populate([5; 4096]));
        assert!(before.is_some() && once.copy() == before);
    }
}

#[test]
fn a_counted_reference_is_given_back_once() {
    let mut file = bindings::file {
        references: Cell::new(2),
    };
    let mut task = bindings::task_struct {
        references: Cell::new(5),
    };
    // SAFETY: Both are wrapped transparently, and have references.
    unsafe {
        drop(ARef::<File>::from_raw(NonNull::from(&mut file).cast()));
        let reference = ARef::<Task>::from_raw(NonNull::from(&mut task).cast());
        assert_eq!(reference.as_ptr(), &raw mut task);
    }
    assert_eq!((file.references.get(), task.references.get()), (1, 4));
}

#[test]
fn a_guard_is_a_read_side_critical_section() {
    let outer = rcu::read_lock();
    drop(rcu::read_lock());
    assert_eq!(bindings::readers(), 1);
    drop(outer);
    assert_eq!(bindings::readers(), 0);
}

#[test]
fn errors_of_c_and_back() {
    assert_eq!(Error::from_errno(-22), EINVAL);
    for errno in [1, 0, -4096, i32::MIN] {
        assert_eq!(Error::from_errno(errno), EINVAL, "{errno} is no errno");
    }
    assert_eq!(Error::from_errno(-4095).to_errno(), -4095);
    assert_eq!(to_result(-16), Err(EBUSY));
    assert_eq!(to_result(5), Ok(()));
    assert_eq!(from_err_ptr(ENOENT.to_ptr::<u8>()), Err(ENOENT));
    let mut number = 1;
    let value = &raw mut number;
    assert_eq!(from_err_ptr(value), Ok(value));
    assert_eq!(
        from_err_ptr(-4096_isize as *mut u8),
        Ok(-4096_isize as *mut u8)
    );
    assert_eq!(Error::from(AllocError), ENOMEM);
}

#[test]
fn bytes_that_are_not_printable_are_escaped() {
    let text = BStr::from_bytes(b"a b~\t\r\n\0\x7f\xff\\");
    assert_eq!(text.to_string(), r"a b~\t\r\n\x00\x7f\xff\");
}

#[test]
fn strings_of_c() {
    let owned = CString::try_from(c"some text").unwrap();
    // SAFETY: The string stays.
    let again = unsafe { std::ffi::CStr::from_char_ptr(owned.as_char_ptr()) };
    assert_eq!(again, c"some text");
}

#[test]
fn a_line_of_the_log_is_cut_at_512_bytes() {
    pr_err!("{}: {}\n", "one", 2);
    pr_err!("{:>600}", 7);
    assert_eq!(
        bindings::log(),
        [(3, "one: 2\n".into()), (3, " ".repeat(512))]
    );
}

#[test]
fn what_is_printed_once_is_not_printed_again() {
    for number in 0..3 {
        pr_warn_once!("number {number}");
    }
    assert_eq!(bindings::log(), [(4, "number 0".into())]);
}

#[test]
fn text_is_written_to_a_seq_file_as_it_is() {
    let mut file = bindings::seq_file {
        text: RefCell::default(),
    };
    // SAFETY: Nobody else uses it.
    unsafe { SeqFile::from_raw(&raw mut file) }
        .call_printf(format_args!("{} of {}%\n", 1, "\u{e9}"));
    assert_eq!(file.text.into_inner(), "1 of \u{e9}%\n".as_bytes());
}

#[test]
fn reading_user_space_ends_at_the_range_and_where_it_cannot_be_read() {
    *bindings::USER.lock().unwrap() = (0..100).collect();
    let at = |offset: usize| UserPtr::from_ptr((4096 + offset) as *mut _);
    let mut reader = UserSlice::new(at(10), 30).reader();
    let mut bytes = [0; 20];
    assert_eq!(reader.read_slice(&mut bytes), Ok(()));
    assert!(bytes.iter().copied().eq(10..30));
    assert_eq!(
        reader.read_slice(&mut bytes),
        Err(EFAULT),
        "10 bytes are left"
    );
    assert_eq!(reader.read_slice(&mut bytes[..10]), Ok(()));
    assert!(bytes[..10].iter().copied().eq(30..40));
    let mut unreadable = UserSlice::new(at(90), 20).reader();
    assert_eq!(unreadable.read_slice(&mut bytes), Err(EFAULT));
}
