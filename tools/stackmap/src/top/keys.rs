// SPDX-License-Identifier: MIT OR Apache-2.0

//! What keys do.

use super::Model;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// How far a page goes.
const PAGE: isize = 10;

/// The reaction to a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reaction {
    /// Draw the model again.
    Show,
    /// The end.
    Quit,
}

impl Model {
    /// Does what a key is for.
    pub fn key(&mut self, key: KeyEvent) -> Reaction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Reaction::Quit,
                _ => Reaction::Show,
            };
        }
        // Esc and a key right after it look the same as both together with Alt.
        if key.modifiers.contains(KeyModifiers::ALT) {
            self.key(KeyEvent::from(KeyCode::Esc));
            return self.key(KeyEvent::from(key.code));
        }
        match key.code {
            KeyCode::Down => self.select(1),
            KeyCode::Up => self.select(-1),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::Home => self.select(isize::MIN / 2),
            KeyCode::End => self.select(isize::MAX / 2),
            KeyCode::Right => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Left => self.scroll = self.scroll.saturating_sub(1),
            code if self.typing => self.type_filter(code),
            KeyCode::Char('q') => return Reaction::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        Reaction::Show
    }

    /// Every letter counts at once.
    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }
}
