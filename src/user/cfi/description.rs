// SPDX-License-Identifier: GPL-2.0

//! The descriptions of functions in `.eh_frame`.

use super::{
    cursor::{encoding, Cursor},
    File, Machine, Unknown,
};

/// Bytes of an augmentation string.
const AUGMENTATION_MAX: usize = 8;

/// Returns the offset after a description, whose length is next.
pub(super) fn end_of<F: File>(cursor: &mut Cursor<'_, F>) -> Result<u64, Unknown> {
    match cursor.u32()? {
        // The end of all of them.
        0 => Err(Unknown::NoFunction),
        // A length of 64 bits follows: no linker writes it.
        u32::MAX => Err(Unknown::Inexpressible),
        length => cursor
            .at()
            .checked_add(u64::from(length))
            .ok_or(Unknown::Damaged),
    }
}

/// What descriptions of functions have in common: the common information entry.
pub(super) struct Cie {
    pub(super) code_align: u64,
    pub(super) data_align: i64,
    /// The encoding of the pointers in descriptions.
    encoding: u8,
    /// Descriptions have more data than their program.
    augmented: bool,
    /// The frames are signal frames.
    pub(super) signal: bool,
    /// The end of the program that all begin with.
    pub(super) end: u64,
}

impl Cie {
    /// Reads it, up to the program.
    pub(super) fn read<F: File>(
        cursor: &mut Cursor<'_, F>,
        machine: &Machine,
    ) -> Result<Self, Unknown> {
        let end = end_of(cursor)?;
        let (id, version) = (cursor.u32()?, cursor.u8()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return Err(Unknown::Damaged);
        }
        let mut augmentation = [0; AUGMENTATION_MAX];
        for (nr, letter) in augmentation.iter_mut().enumerate() {
            *letter = cursor.u8()?;
            if *letter == 0 {
                break;
            }
            if nr + 1 == AUGMENTATION_MAX {
                return Err(Unknown::Inexpressible);
            }
        }
        let code_align = cursor.unsigned()?;
        let data_align = cursor.signed()?;
        let ra = match version {
            1 => u64::from(cursor.u8()?),
            _ => cursor.unsigned()?,
        };
        if ra != machine.ra {
            return Err(Unknown::Inexpressible);
        }
        let mut common = Self {
            code_align,
            data_align,
            encoding: encoding::ABSOLUTE,
            augmented: augmentation[0] == b'z',
            signal: false,
            end,
        };
        if common.augmented {
            let bytes = cursor.unsigned()?;
            let program = cursor.at().checked_add(bytes).ok_or(Unknown::Damaged)?;
            for letter in augmentation
                .iter()
                .skip(1)
                .take_while(|letter| **letter != 0)
            {
                match letter {
                    b'R' => common.encoding = cursor.u8()?,
                    b'L' => drop(cursor.u8()?),
                    b'P' => {
                        let encoding = cursor.u8()?;
                        cursor.pointer(encoding)?;
                    }
                    b'S' => common.signal = true,
                    // arm64: return addresses are signed with the second key, or the frame's memory is tagged.
                    b'B' | b'G' => {}
                    _ => return Err(Unknown::Inexpressible),
                }
            }
            cursor.seek(program);
        } else if augmentation[0] != 0 {
            return Err(Unknown::Inexpressible);
        }
        Ok(common)
    }

    /// Returns the address and the size of the function of a description: both are next, and loaded at `field`.
    pub(super) fn range<F: File>(
        &self,
        cursor: &mut Cursor<'_, F>,
        field: u64,
    ) -> Result<(u64, u64), Unknown> {
        let begin = cursor.pointer(self.encoding)?;
        let begin = match self.encoding & 0xf0 {
            encoding::ABSOLUTE => begin,
            encoding::PC_RELATIVE => begin.wrapping_add(field),
            _ => return Err(Unknown::Inexpressible),
        };
        Ok((begin, cursor.pointer(self.encoding & 0x0f)?))
    }

    /// Leaves out what stands between the range and the program of a description.
    pub(super) fn skip_augmentation<F: File>(
        &self,
        cursor: &mut Cursor<'_, F>,
    ) -> Result<(), Unknown> {
        if self.augmented {
            let bytes = cursor.unsigned()?;
            cursor.skip(bytes)?;
        }
        Ok(())
    }
}
