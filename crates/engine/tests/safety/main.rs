//! What must hold whatever happens: crashes, damage, races, odd input.

mod counts;
mod crash;
mod damage;
mod kit;
mod model;
mod races;
mod round_trip;
mod sources;
