//! What must hold whatever happens: crashes, damage, races, odd input.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod alone;
mod beside;
mod bounds;
mod buckets;
mod counted;
mod counts;
mod crash;
mod damage;
mod deletion;
mod deltas;
mod ends;
mod exchanges;
mod forged;
mod forger;
mod forgeries;
mod hostile_trees;
mod kinds;
mod kit;
mod lying;
mod memo;
mod model;
mod model_trees;
mod month;
mod node_crashes;
mod nodes;
mod nodes_out;
mod operations;
mod places;
mod races;
mod reader;
mod received;
mod recompression;
mod replaced;
mod replication;
mod rereads;
mod retention;
mod round_trip;
mod rounds;
mod shared;
mod shared_deltas;
mod sources;
mod status;
mod streams;
mod tags;
mod tree_changes;
mod tree_crashes;
mod tree_damage;
mod tree_frames;
mod tree_hosts;
mod tree_in_place;
#[path = "../../../tree/tests/tree/kit.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod tree_kit;
mod tree_notices;
mod tree_oracle;
mod tree_places;
mod tree_races;
mod tree_rounds;
mod tree_script;
mod tree_sharing;
mod tree_stress;
mod trees;
mod write_only;
mod writers;
