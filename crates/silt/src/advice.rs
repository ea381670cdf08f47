//! What users can do about errors, in the words of the program's commands and flags.

use siltstone::Advice;

/// A message with the advice that belongs to it, if there is any.
pub fn with_advice(message: &str, advice: Option<&Advice>) -> String {
    match advice.and_then(text) {
        Some(advice) => format!("{message}; {advice}"),
        None => message.to_owned(),
    }
}

fn text(advice: &Advice) -> Option<String> {
    let text = match advice {
        Advice::RecoverSeries { series } => {
            return Some(format!(
                "`silt recover {series}` goes on with the last head that can be trusted and brings \
                 back snapshots that later ones dropped"
            ));
        }
        Advice::UnprotectSnapshot { snapshot } => {
            return Some(format!("run `silt unprotect {snapshot}` first"));
        }
        Advice::FinishKeyRemoval { key } => {
            return Some(format!(
                "if the removal was interrupted, finish it with another key: `silt key remove \
                 {key}`"
            ));
        }
        Advice::InitRepository => "`silt init` makes one",
        Advice::ListSnapshots => "`silt snapshots` lists them",
        Advice::ListDeletedSnapshots => {
            "`silt snapshots --deleted` lists those that can be brought back"
        }
        Advice::ListKeys => "`silt key list` shows them",
        Advice::ListPlaces => "`silt copies` lists them",
        Advice::ShowSnapshot => "`silt show` says since when",
        Advice::Check => "`silt check` says what is missing",
        Advice::KeepSomething => "give it at least one --keep rule",
        Advice::HealPlaces => "`silt copies heal` replaces damaged objects by good copies",
        Advice::AddPlace => "`silt copies add` adds a copy or brings one up to date",
        Advice::ReachPlace => {
            "bring it back, or go on without it after `silt copies remove`, or say where it is now \
             with `silt copies move`"
        }
        Advice::AddKeyForSeries => "`silt key add --series` makes a key for it",
        Advice::UseReadingKey => "use a key that was made without --write-only",
        Advice::WaitForSeries => "try again later, or use --wait",
        Advice::AcceptOlderState => {
            "if the repository was rolled back on purpose, say so with --accept-older"
        }
        Advice::AcceptRemovedSeries => "if you removed it, say so with --accept-older",
        Advice::ReplaceTarget => {
            "pass --force to replace it, or --in-place to overwrite only what differs"
        }
        Advice::OverwriteDevice => "pass --force to overwrite it",
        Advice::CreateTarget => "restore without --in-place to create it",
        Advice::RestoreInPlace => "only --in-place targets can be",
        Advice::FreeTarget => "stop that program first, or restore elsewhere",
        Advice::ReadInUse => "take a snapshot first, or pass --allow-in-use",
        Advice::ConvertImage => {
            "`qemu-img convert` makes a qcow2 image of it; --format raw stores the file as it is"
        }
        Advice::ReadRaw => "pass --format raw to read its bytes as they are",
        Advice::NameFormat => {
            "pass --format qcow2 if it is a qcow2 image, or --format raw if it is a raw disk"
        }
        Advice::AllowBackingFolder => {
            "if it belongs to the disk, pass --allow-backing with its folder"
        }
        Advice::NameMapForm => "if `rbd diff` wrote it, pass --changed-form rbd",
        _ => return None,
    };
    Some(text.to_owned())
}
