// SPDX-License-Identifier: GPL-2.0

//! What the kernel hashes stacks with elsewhere: `jhash2()` of `include/linux/jhash.h`.

/// Hashes a stack as words of 32 bits, as `stack_depot_save()` does.
#[inline(always)]
pub fn jhash(words: &[u32], seed: u32) -> u32 {
    let bytes = words.len() as u32 * 4;
    let mut state = [0xdead_beef_u32.wrapping_add(bytes).wrapping_add(seed); 3];
    let mut rest = words;
    while let [a, b, c, next @ ..] = rest {
        add(&mut state, [*a, *b, *c]);
        if next.is_empty() {
            return end(state);
        }
        state = mix(state);
        rest = next;
    }
    match rest {
        [a, b] => add(&mut state, [*a, *b, 0]),
        [a] => add(&mut state, [*a, 0, 0]),
        _ => return state[2],
    }
    end(state)
}

#[inline(always)]
fn add(state: &mut [u32; 3], words: [u32; 3]) {
    for (sum, word) in state.iter_mut().zip(words) {
        *sum = sum.wrapping_add(word);
    }
}

/// `__jhash_mix()`
#[inline(always)]
fn mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    for (first, second, third) in [(4, 6, 8), (16, 19, 4)] {
        a = a.wrapping_sub(c) ^ c.rotate_left(first);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(second);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(third);
        b = b.wrapping_add(a);
    }
    [a, b, c]
}

/// `__jhash_final()`
#[inline(always)]
fn end([mut a, mut b, mut c]: [u32; 3]) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}
