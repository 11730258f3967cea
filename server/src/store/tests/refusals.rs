//! Files that must be refused, by name and without changing a byte.
