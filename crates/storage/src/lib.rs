//! Named immutable objects.
