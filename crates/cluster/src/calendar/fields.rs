//! The values that a calendar expression admits for one unit of time.

use jiff::civil::Date;

/// Values from `first`, each `step` after the one before, up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub first: i16,
    pub last: Option<i16>,
    /// `None`, if there is only `first`.
    pub step: Option<i16>,
}

impl Part {
    fn has(self, value: i16) -> bool {
        match self.step {
            None => value == self.first,
            Some(step) => {
                value >= self.first
                    && self.last.is_none_or(|last| value <= last)
                    && (value - self.first) % step == 0
            }
        }
    }

    /// Of a month of so many days, the days that a part means which counts from its end.
    fn in_month_of(self, days: i16) -> Self {
        let day = |number: i16| days + 1 - number;
        match self.last {
            Some(last) => Self { first: day(last), last: Some(day(self.first)), ..self },
            None => Self { first: day(self.first), ..self },
        }
    }
}

/// Values of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Field {
    /// Empty, if every value is admitted.
    pub parts: Vec<Part>,
}

impl Field {
    pub fn only(value: i16) -> Self {
        Self { parts: vec![Part { first: value, last: None, step: None }] }
    }

    pub fn is_any(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn has(&self, value: i16) -> bool {
        self.is_any() || self.parts.iter().any(|part| part.has(value))
    }
}

/// Days of a month.
#[derive(Clone, Debug, Default)]
pub(super) struct Days {
    pub field: Field,
    /// Whether they are counted from the end of the month: 1 is the last.
    pub from_end: bool,
}

impl Days {
    pub fn has(&self, date: Date) -> bool {
        let day = date.day().into();
        if !self.from_end {
            return self.field.has(day);
        }
        let days = date.days_in_month().into();
        self.field.is_any() || self.field.parts.iter().any(|part| part.in_month_of(days).has(day))
    }
}
