// SPDX-License-Identifier: GPL-2.0

//! The signatures of functions are read from BTF as they are; input that is not BTF is refused.

use proptest::prelude::*;
use stackmap_btf::{Btf, Error, Signature, Type};
use std::time::Instant;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;
/// The first one that is not known.
const NEW: u32 = 20;

const SIGNED: u32 = 1 << 24;
const CHAR: u32 = 2 << 24;
const BOOL: u32 = 4 << 24;

/// A description that is being written.
#[derive(Clone)]
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    layouts: Vec<u8>,
    nr: u32,
}

impl Writer {
    fn new() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
            layouts: Vec::new(),
            nr: 0,
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes().chain([0]));
        at
    }

    /// Any type; returns its number.
    fn add(&mut self, name: &str, kind: u32, nr: u32, size_or_type: u32, more: &[u32]) -> u32 {
        let name = self.string(name);
        let words = [name, kind << 24 | nr, size_or_type];
        for word in words.iter().chain(more) {
            self.types.extend(word.to_ne_bytes());
        }
        self.nr += 1;
        self.nr
    }

    fn int(&mut self, name: &str, size: u32, encoding: u32) -> u32 {
        self.add(name, INT, 0, size, &[encoding | (size * 8)])
    }

    /// What only refers to another type.
    fn to(&mut self, kind: u32, id: u32) -> u32 {
        self.add("", kind, 0, id, &[])
    }

    /// A function whose parameters have names.
    fn func(&mut self, name: &str, returned: u32, params: &[u32]) -> u32 {
        let mut more = Vec::new();
        for id in params {
            let name = if *id == 0 { 0 } else { self.string("param") };
            more.extend([name, *id]);
        }
        let proto = self.add("", FUNC_PROTO, params.len() as u32, returned, &more);
        self.add(name, FUNC, 1, proto, &[])
    }

    /// One of each kind that a function's description must be found after.
    fn all_kinds(&mut self) {
        let int = self.int("int", 4, SIGNED);
        self.to(PTR, 0);
        self.add("", ARRAY, 0, 0, &[int, int, 10]);
        self.add("s", STRUCT, 2, 8, &[1, int, 0, 1, int, 32]);
        self.add("u", UNION, 1, 4, &[1, int, 0]);
        self.add("e", ENUM, 3, 4, &[1, 0, 1, 1, 1, 2]);
        self.add("f", FWD, 0, 0, &[]);
        self.add("t", TYPEDEF, 0, int, &[]);
        for kind in [VOLATILE, CONST, RESTRICT] {
            self.to(kind, int);
        }
        self.func("other", int, &[int, int, int]);
        let var = self.add("v", VAR, 0, int, &[1]);
        self.add(".data", DATASEC, 2, 8, &[var, 0, 4, var, 4, 4]);
        self.add("double", FLOAT, 0, 8, &[]);
        self.add("tag", DECL_TAG, 0, 4, &[u32::MAX]);
        self.add("user", TYPE_TAG, 0, int, &[]);
        self.add("e64", ENUM64, 2, 8, &[1, 0, 0, 1, 1, 0]);
        // A structure that is as large as the older form of this word could not say.
        self.add("large", STRUCT, 0x1_2345, 8, &vec![1; 3 * 0x1_2345]);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let layouts = self.layouts.len() as u32;
        let header_len = if layouts == 0 { 24 } else { 32 };
        bytes.extend(0xeb9f_u16.to_ne_bytes());
        bytes.extend([1, 0]);
        for word in [header_len, 0, types, types, strings] {
            bytes.extend(u32::to_ne_bytes(word));
        }
        if layouts != 0 {
            bytes.extend((types + strings).to_ne_bytes());
            bytes.extend(layouts.to_ne_bytes());
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes.extend(&self.layouts);
        bytes
    }

    /// What is said of a function.
    fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let bytes = self.bytes();
        let signature = function(&Btf::new(&bytes)?, name)?;
        Ok(signature.map(|signature| signature.to_string()))
    }

    #[track_caller]
    fn expect(&self, name: &str, signature: &str) {
        assert_eq!(self.read(name), Ok(Some(signature.to_owned())));
    }
}

/// Returns what a function takes and what it returns.
fn function(btf: &Btf<'_>, name: &str) -> Result<Option<Signature>, Error> {
    let [found] = btf.functions([name.as_bytes()]);
    found
}

#[test]
fn a_function_is_found_behind_types_of_all_kinds() {
    let mut btf = Writer::new();
    btf.all_kinds();
    let long = btf.int("unsigned long", 8, 0);
    let bool = btf.int("_Bool", 1, BOOL);
    btf.func("wanted", bool, &[2, long, 1]);
    btf.all_kinds();
    btf.expect("wanted", "(ptr, u64, s32) -> bool");
    btf.expect("other", "(s32, s32, s32) -> s32");
    // Only all of the name, and only of a function.
    for name in ["want", "wanted2", "", "anted", "int", "s"] {
        assert_eq!(btf.read(name), Ok(None), "{name}");
    }
}

#[test]
fn types_that_differ_are_found_to_differ() {
    let mut btf = Writer::new();
    let types = [
        (0, "..."),
        (btf.to(PTR, 0), "ptr"),
        (btf.int("_Bool", 1, BOOL), "bool"),
        (btf.int("wide", 4, BOOL), "wide bool"),
        (btf.int("char", 1, CHAR), "u08"),
        (btf.int("signed char", 1, CHAR | SIGNED), "s08"),
        (btf.int("short", 2, SIGNED), "s16"),
        (btf.int("unsigned int", 4, 0), "u32"),
        (btf.int("int", 4, SIGNED), "s32"),
        (btf.int("long", 8, SIGNED), "s64"),
        (btf.int("unsigned __int128", 16, 0), "u128"),
        (btf.add("bits", INT, 0, 4, &[3]), "bits"),
        (btf.add("shifted", INT, 0, 4, &[8 << 16 | 32]), "bits"),
        (btf.add("e", ENUM, 0, 4, &[]), "e32"),
        (btf.add("e64", ENUM64, 0, 8, &[]), "e64"),
        (btf.add("s", STRUCT, 0, 8, &[]), "struct"),
        (btf.add("u", UNION, 0, 8, &[]), "union"),
        (btf.add("f", FWD, 0, 0, &[]), "incomplete"),
        (btf.add("double", FLOAT, 0, 8, &[]), "float"),
        (btf.add("", ARRAY, 0, 0, &[1, 1, 10]), "array"),
    ];
    for (id, name) in types {
        btf.func(&format!("takes {id}"), 0, &[id]);
        btf.expect(&format!("takes {id}"), &format!("({name}) -> void"));
        if id != 0 {
            btf.func(&format!("gives {id}"), id, &[]);
            btf.expect(&format!("gives {id}"), &format!("() -> {name}"));
        }
    }
    // A parameter that has a name and no type is no "...".
    let name = btf.string("param");
    let proto = btf.add("", FUNC_PROTO, 1, 0, &[name, 0]);
    btf.add("nothing", FUNC, 1, proto, &[]);
    btf.expect("nothing", "(void) -> void");
}

#[test]
fn typedefs_and_qualifiers_are_resolved() {
    let mut btf = Writer::new();
    let mut id = btf.int("unsigned int", 4, 0);
    for kind in [TYPEDEF, CONST, VOLATILE, RESTRICT, TYPE_TAG, TYPEDEF] {
        id = btf.to(kind, id);
    }
    id = btf.add("", DECL_TAG, 0, id, &[u32::MAX]);
    btf.func("f", id, &[id]);
    btf.expect("f", "(u32) -> u32");
    let nothing = btf.to(CONST, 0);
    btf.func("g", nothing, &[]);
    btf.expect("g", "() -> void");
}

#[test]
fn a_cycle_of_types_is_an_error() {
    let mut btf = Writer::new();
    // Each is the other.
    btf.to(TYPEDEF, 2);
    btf.to(CONST, 1);
    btf.func("f", 0, &[1]);
    assert!(matches!(btf.read("f"), Err(Error::Reference(1 | 2))));
    btf.func("g", 0, &[1000]);
    assert_eq!(btf.read("g"), Err(Error::Reference(1000)));
    btf.func("h", u32::MAX, &[]);
    assert_eq!(btf.read("h"), Err(Error::Reference(u32::MAX)));
    // Neither is a prototype a type of a parameter, nor a number a prototype.
    let proto = btf.add("", FUNC_PROTO, 0, 0, &[]);
    btf.func("i", 0, &[proto]);
    assert_eq!(btf.read("i"), Err(Error::Reference(proto)));
    let int = btf.int("int", 4, SIGNED);
    btf.add("j", FUNC, 0, int, &[]);
    assert_eq!(btf.read("j"), Err(Error::Reference(int)));
    btf.add("k", FUNC, 0, 0, &[]);
    assert_eq!(btf.read("k"), Err(Error::Reference(0)));
}

#[test]
fn types_are_found_by_their_number_among_any_number_of_types() {
    for nr in [
        1, 62, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 50_000,
    ] {
        let mut btf = Writer::new();
        let mut ints = Vec::new();
        for i in 0..nr {
            // What lies between them has any length.
            btf.add("s", STRUCT, i % 3, 0, &vec![0; 3 * (i as usize % 3)]);
            ints.push((btf.int("u", i + 1, 0), (i + 1) * 8));
        }
        let bytes = btf.bytes();
        assert!(Btf::new(&bytes).is_ok());
        for i in [0, nr / 3, nr / 2, nr - 1] {
            let (id, bits) = ints[i as usize];
            let mut btf = btf.clone();
            btf.add("f", FUNC, 0, btf.nr + 2, &[]);
            btf.add("", FUNC_PROTO, 0, id, &[]);
            let name = if bits < 256 {
                format!("u{bits:02}")
            } else {
                "bits".to_owned()
            };
            btf.expect("f", &format!("() -> {name}"));
        }
    }
}

#[test]
fn many_parameters_are_counted() {
    let mut btf = Writer::new();
    let int = btf.int("int", 4, SIGNED);
    btf.func("twelve", 0, &[int; 12]);
    btf.func("thirteen", 0, &[int; 13]);
    btf.func("fourteen", 0, &[int; 14]);
    let bytes = btf.bytes();
    let btf = Btf::new(&bytes).unwrap();
    let read = |name: &str| function(&btf, name).unwrap().unwrap();
    assert!(!read("twelve").to_string().contains("more"));
    assert!(read("thirteen")
        .to_string()
        .ends_with("s32, and 1 more) -> void"));
    assert!(read("twelve") != read("thirteen") && read("thirteen") != read("fourteen"));
    let wanted = Signature::new(Type::Void, &[Type::Signed(32); 13]);
    assert_eq!(read("thirteen"), wanted);
}

#[test]
fn an_unknown_kind_is_skipped_if_its_length_is_known() {
    let mut btf = Writer::new();
    btf.add("?", NEW, 3, 0, &[7, 8, 9, 10, 11, 12, 13]);
    btf.func("f", 0, &[]);
    assert_eq!(btf.read("f"), Err(Error::Kind(NEW)));
    // Four bytes once, and eight for each of three.
    btf.layouts = vec![0; 4 * NEW as usize];
    assert_eq!(btf.read("f"), Err(Error::Kind(NEW)));
    btf.layouts.extend([4, 8, 0, 0]);
    btf.expect("f", "() -> void");
    // No function takes that which is not known.
    btf.func("g", 0, &[1]);
    assert_eq!(btf.read("g"), Err(Error::Reference(1)));
    // The length of a known kind is not taken from the input.
    for entry in btf.layouts.chunks_exact_mut(4).take(NEW as usize) {
        entry.fill(0xff);
    }
    btf.expect("f", "() -> void");
    btf.add("none", 0, 0, 0, &[]);
    assert_eq!(btf.read("f"), Err(Error::Kind(0)));
}

#[test]
fn input_that_is_not_btf_is_refused() {
    let mut btf = Writer::new();
    btf.all_kinds();
    let good = btf.bytes();
    assert!(Btf::new(&good).is_ok());
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        Btf::new(&bad).err()
    };
    assert_eq!(
        with(0, &0xeb9f_u16.swap_bytes().to_ne_bytes()),
        Some(Error::Magic)
    );
    assert_eq!(with(0, b"\x7fELF"), Some(Error::Magic));
    assert_eq!(with(2, &[2]), Some(Error::Version(2)));
    assert_eq!(with(4, &20_u32.to_ne_bytes()), Some(Error::Truncated));
    for at in [4, 8, 12, 16, 20] {
        for word in [u32::MAX, 1 << 31, good.len() as u32 + 1] {
            assert_eq!(
                with(at, &word.to_ne_bytes()),
                Some(Error::Truncated),
                "{at} {word}"
            );
        }
    }
}

#[test]
fn truncated_btf_is_refused() {
    let mut btf = Writer::new();
    btf.int("int", 4, SIGNED);
    btf.add("e", ENUM, 3, 4, &[1, 0, 1, 1, 1, 2]);
    btf.func("f", 1, &[1, 2]);
    let good = btf.bytes();
    for len in 0..good.len() {
        assert_eq!(
            Btf::new(&good[..len]).err(),
            Some(Error::Truncated),
            "{len}"
        );
    }
    // Likewise its types alone.
    let types = btf.types.len();
    let mut whole = 0;
    for len in 0..=types {
        btf.types.truncate(types - len);
        whole += usize::from(Btf::new(&btf.bytes()).is_ok());
    }
    assert_eq!(whole, 5);
    // The name is the last of all, and not ended.
    btf = Writer::new();
    btf.func("f", 0, &[]);
    btf.strings.pop();
    assert_eq!(btf.read("f"), Ok(None));
}

#[test]
fn hostile_btf_is_searched_quickly() {
    let mut btf = Writer::new();
    let mut id = btf.int("int", 4, SIGNED);
    for _ in 0..50_000 {
        btf.to(PTR, 0);
    }
    // As far from any mark as can be, and after the most names.
    for _ in 0..31 {
        id = btf.to(TYPEDEF, id);
        for _ in 0..1000 {
            btf.to(PTR, 0);
        }
    }
    btf.func("f", id, &[id; 100_000]);
    let bytes = btf.bytes();
    // 32 names for each of 13 types, each after as many types as there are between two marks, are seven times as many types
    // as there are.
    let took = |begun: Instant| begun.elapsed().as_nanos();
    let ratios = (0..3).map(|_| {
        let begun = Instant::now();
        let btf = Btf::new(&bytes).unwrap();
        let read = took(begun);
        let begun = Instant::now();
        let found = function(&btf, "f").unwrap().unwrap().to_string();
        assert!(found.ends_with("s32, and 99988 more) -> s32"), "{found}");
        took(begun) / read
    });
    assert!(ratios.min() < Some(20));
}

/// Reads all that can be read; only that it ends, and without a panic.
fn read_all(bytes: &[u8]) {
    let Ok(btf) = Btf::new(bytes) else { return };
    for name in ["wanted", "other", "", "f"] {
        if let Ok(Some(signature)) = function(&btf, name) {
            assert!(!signature.to_string().is_empty());
        }
    }
}

fn some() -> Vec<u8> {
    let mut btf = Writer::new();
    let long = btf.int("unsigned long", 8, 0);
    let name = btf.to(TYPEDEF, long);
    btf.add("e", ENUM, 3, 4, &[1, 0, 1, 1, 1, 2]);
    btf.add("", ARRAY, 0, 0, &[long, long, 10]);
    btf.add("s", STRUCT, 2, 8, &[1, long, 0, 1, long, 32]);
    btf.func("other", long, &[long, name, 0]);
    btf.add("?", NEW, 1, 0, &[1]);
    btf.func("wanted", name, &[name, long]);
    btf.layouts = vec![0; 4 * NEW as usize];
    btf.layouts.extend([0, 4, 0, 0]);
    let bytes = btf.bytes();
    assert!(Btf::new(&bytes).is_ok());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_input_is_read_or_refused(
        changes in proptest::collection::vec((0..4096_usize, any::<u32>(), 0..33_u32), 1..6),
        len in 0..4096_usize,
        cut: bool,
    ) {
        let mut bytes = some();
        for (at, word, shift) in changes {
            // Small numbers, too: they lead further.
            let word = word.checked_shr(shift).unwrap_or(0).to_ne_bytes();
            let at = at % (bytes.len() - 3);
            bytes[at..at + 4].copy_from_slice(&word);
        }
        if cut {
            bytes.truncate(len % (bytes.len() + 1));
        }
        read_all(&bytes);
    }

    #[test]
    fn random_types_after_a_valid_header_are_read_or_refused(
        words in proptest::collection::vec((any::<u32>(), 0..33_u32), 0..64),
    ) {
        let mut btf = Writer::new();
        for (word, shift) in words {
            btf.types.extend(word.checked_shr(shift).unwrap_or(0).to_ne_bytes());
        }
        btf.string("wanted");
        read_all(&btf.bytes());
    }

    #[test]
    fn written_btf_reads_back(params in proptest::collection::vec(0..4_usize, 0..12), gives in 0..4_usize) {
        let mut btf = Writer::new();
        let ids = [btf.to(PTR, 0), btf.int("b", 1, BOOL), btf.int("u", 2, 0), btf.int("s", 8, SIGNED)];
        let types = [Type::Pointer, Type::Bool, Type::Unsigned(16), Type::Signed(64)];
        let taken: Vec<_> = params.iter().map(|i| ids[*i]).collect();
        btf.func("f", ids[gives], &taken);
        let bytes = btf.bytes();
        let read = function(&Btf::new(&bytes).unwrap(), "f").unwrap();
        let taken: Vec<_> = params.iter().map(|i| types[*i]).collect();
        prop_assert_eq!(read, Some(Signature::new(types[gives], &taken)));
        // Nor is it like any other.
        let other = Signature::new(types[(gives + 1) % 4], &taken);
        prop_assert_ne!(read, Some(other));
        if let Some((_, fewer)) = taken.split_last() {
            prop_assert_ne!(read, Some(Signature::new(types[gives], fewer)));
        }
    }
}
