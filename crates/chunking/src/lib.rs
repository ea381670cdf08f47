//! Cut points, fingerprints and signatures.
