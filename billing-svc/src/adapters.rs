//! What lies outside of the database.

pub(crate) mod token_file;
