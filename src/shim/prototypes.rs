// SPDX-License-Identifier: GPL-2.0

//! Whether the kernel's functions that no header has are those that the module was built for.
//!
//! A call of a function that takes something else would end in a crash. The module's C calls them
//! by the prototypes of [`include/stackmap_functions.h`](../../include/stackmap_functions.h), the
//! running kernel says in its BTF what they are, and both are compared before any of them is
//! called.

use crate::{
    shim,
    shim::btf::{Btf, Signature, Type},
};
use kernel::prelude::*;

/// What bindgen made of the prototypes. Nothing is called by these: there is no such symbol.
#[allow(clippy::all, missing_docs, non_camel_case_types, unreachable_pub)]
mod functions {
    use kernel::ffi;

    include!(env!("STACKMAP_FUNCTIONS"));
}

/// What a type is to a caller.
trait Plain {
    const TYPE: Type;
}

impl<T> Plain for *mut T {
    const TYPE: Type = Type::Pointer;
}

impl<T> Plain for *const T {
    const TYPE: Type = Type::Pointer;
}

macro_rules! plain {
    ($($type:ty => $plain:expr),* $(,)?) => {
        $(impl Plain for $type {
            const TYPE: Type = $plain;
        })*
    };
}

plain! {
    () => Type::Void,
    bool => Type::Bool,
    c_int => Type::Signed(c_int::BITS),
    c_uint => Type::Unsigned(c_uint::BITS),
    c_long => Type::Signed(c_long::BITS),
    c_ulong => Type::Unsigned(c_ulong::BITS),
}

/// A function of C.
trait Prototype {
    fn signature() -> Signature;
}

macro_rules! prototype {
    ($($param:ident),*) => {
        impl<R: Plain, $($param: Plain),*> Prototype for unsafe extern "C" fn($($param),*) -> R {
            fn signature() -> Signature {
                Signature::new(R::TYPE, &[$($param::TYPE),*])
            }
        }
    };
}

prototype!(A);
prototype!(A, B);
prototype!(A, B, C);
prototype!(A, B, C, D);
prototype!(A, B, C, D, E);

/// Returns the signature of a function that is never called: the closure is there for its type.
fn signature_of<P: Prototype>(_function: impl FnOnce() -> P) -> Signature {
    P::signature()
}

/// Names and signatures of functions. One that is not listed is not used: the compiler warns.
macro_rules! functions {
    ($($name:ident($($param:tt),*)),* $(,)?) => {
        [$((
            stringify!($name),
            signature_of(|| functions::$name as unsafe extern "C" fn($($param),*) -> _),
        )),*]
    };
}

/// Compares all of them. Fails with `ENOEXEC` if one differs, and says in the log how.
pub(crate) fn check() -> Result {
    let Some(data) = shim::btf() else {
        pr_notice!("unexported functions cannot be compared: this kernel has no BTF\n");
        return Ok(());
    };
    let btf = match Btf::new(data) {
        Ok(btf) => btf,
        Err(error) => {
            pr_notice!(
                "unexported functions cannot be compared: BTF: {}\n",
                format_args!("{error}")
            );
            return Ok(());
        }
    };
    let functions = functions!(
        __ftrace_trace_stack(_, _, _, _, _),
        trace_buffer_unlock_commit_nostack(_, _),
        seq_print_ip_sym(_, _, _),
        tracer_tracing_is_on(_),
    );
    let theirs = btf.functions(functions.map(|(name, _)| name.as_bytes()));
    for ((name, ours), theirs) in functions.into_iter().zip(theirs) {
        match theirs {
            Ok(Some(theirs)) if theirs == ours => {}
            Ok(Some(theirs)) => {
                pr_err!(
                    "{name}(): the module was built for {}, this kernel has {}\n",
                    format_args!("{ours}"),
                    format_args!("{theirs}")
                );
                return Err(ENOEXEC);
            }
            Ok(None) => pr_notice!("{name}() cannot be compared: it is not in this kernel's BTF\n"),
            Err(error) => pr_notice!(
                "{name}() cannot be compared: BTF: {}\n",
                format_args!("{error}")
            ),
        }
    }
    Ok(())
}
