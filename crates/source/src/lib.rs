//! Where volumes come from and go to.
