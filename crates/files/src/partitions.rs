//! Partition tables: MBR with logical partitions, and GPT.

use siltstone::Result;

use crate::disk::Region;
use crate::little_endian::{u16_at, u32_at, u64_at};
use crate::probe::FileSystem;

/// Most partitions that are listed.
const PARTITIONS_MAX: usize = 256;
/// Largest entry of a GPT.
const GPT_ENTRY_BYTES_MAX: u32 = 4096;
/// Sizes of a sector that disks have.
const SECTORS: [u64; 2] = [512, 4096];

/// How a disk is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Not at all: a file system fills it.
    None,
    /// A master boot record.
    Mbr,
    /// A GUID partition table.
    Gpt,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number as Linux counts: `sda1` is 1; 0 for a disk without a table.
    pub number: u32,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// The name that a GPT gives it.
    pub name: String,
    /// Its file system or other content.
    pub file_system: FileSystem,
}

/// The partitions of a disk, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kind of partition table.
    pub table: TableKind,
    /// The partitions; one that spans the disk where there is no table.
    pub partitions: Vec<Partition>,
}

impl Layout {
    /// Reads the partition table of a disk and looks into its partitions.
    pub fn read(disk: &Region) -> Result<Self> {
        let boot = disk.beginning(512)?;
        let has_mbr = boot.len() == 512 && boot[510..] == [0x55, 0xaa];
        // Boot sectors of file systems end like a table.
        let whole = FileSystem::of(disk)?;
        let mut found = (TableKind::None, Vec::new());
        if has_mbr && matches!(whole, FileSystem::Unknown | FileSystem::Empty) {
            found = match gpt(disk)? {
                Some(partitions) => (TableKind::Gpt, partitions),
                None => (TableKind::Mbr, mbr(disk, &boot)?),
            };
        }
        let (table, mut partitions) = found;
        if table == TableKind::None {
            let whole = Partition {
                number: 0,
                offset: 0,
                bytes: disk.bytes(),
                name: String::new(),
                file_system: whole,
            };
            return Ok(Self { table, partitions: vec![whole] });
        }
        for partition in &mut partitions {
            partition.file_system = FileSystem::of(&disk.part(partition.offset, partition.bytes))?;
        }
        Ok(Self { table, partitions })
    }
}

fn partition(number: usize, offset: u64, bytes: u64, name: String) -> Partition {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Partition { number, offset, bytes, name, file_system: FileSystem::Unknown }
}

/// The four entries of a boot record: type, first sector, number of sectors.
fn records(sector: &[u8]) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
    sector[446..510]
        .chunks_exact(16)
        .map(|record| (record[4], u64::from(u32_at(record, 8)), u64::from(u32_at(record, 12))))
}

fn mbr(disk: &Region, boot: &[u8]) -> Result<Vec<Partition>> {
    let is_extended = |kind: u8| matches!(kind, 0x05 | 0x0f | 0x85);
    let mut partitions = Vec::new();
    let mut logical = Vec::new();
    for (index, (kind, first, sectors)) in records(boot).enumerate() {
        if is_extended(kind) {
            logical = logical_partitions(disk, first)?;
        } else if kind != 0 && sectors > 0 {
            partitions.push(partition(index + 1, first * 512, sectors * 512, String::new()));
        }
    }
    partitions.extend(logical);
    Ok(partitions)
}

/// The partitions in an extended one, a list linked by their boot records.
fn logical_partitions(disk: &Region, extended: u64) -> Result<Vec<Partition>> {
    let mut partitions = Vec::new();
    let mut here = extended;
    for number in 5..5 + PARTITIONS_MAX {
        let sector = disk.part(here * 512, 512).beginning(512)?;
        if sector.len() < 512 || sector[510..] != [0x55, 0xaa] {
            break;
        }
        let mut records = records(&sector);
        let (Some((kind, first, sectors)), Some((_, next, _))) = (records.next(), records.next())
        else {
            break;
        };
        if kind != 0 && sectors > 0 {
            let (offset, bytes) = ((here + first) * 512, sectors * 512);
            partitions.push(partition(number, offset, bytes, String::new()));
        }
        // A list always leads on, or it leads in circles.
        if next == 0 || extended + next <= here {
            break;
        }
        here = extended + next;
    }
    Ok(partitions)
}

/// The partitions of a GPT; `None` where there is none.
fn gpt(disk: &Region) -> Result<Option<Vec<Partition>>> {
    for sector_bytes in SECTORS {
        let header = disk.part(sector_bytes, 512).beginning(512)?;
        if header.len() < 512 || !header.starts_with(b"EFI PART") {
            continue;
        }
        let (entries_at, count) = (u64_at(&header, 72), u32_at(&header, 80));
        let entry_bytes = u32_at(&header, 84);
        if !(128..=GPT_ENTRY_BYTES_MAX).contains(&entry_bytes) {
            continue;
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(PARTITIONS_MAX);
        let entry_bytes = usize::try_from(entry_bytes).unwrap_or(usize::MAX);
        let table = disk.part(entries_at.saturating_mul(sector_bytes), u64::MAX);
        let table = table.beginning(count * entry_bytes)?;
        let mut partitions = Vec::new();
        for (index, entry) in table.chunks_exact(entry_bytes).enumerate() {
            let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
            if entry[..16] == [0; 16] || last < first {
                continue;
            }
            let sectors = (last - first).saturating_add(1);
            let units: Vec<u16> = (56..128).step_by(2).map(|at| u16_at(entry, at)).collect();
            let name = String::from_utf16_lossy(&units);
            let (offset, bytes) =
                (first.saturating_mul(sector_bytes), sectors.saturating_mul(sector_bytes));
            let name = name.trim_end_matches('\0').to_owned();
            partitions.push(partition(index + 1, offset, bytes, name));
        }
        return Ok(Some(partitions));
    }
    Ok(None)
}
