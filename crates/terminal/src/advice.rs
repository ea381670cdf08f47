//! Advice on errors, in terms of the program's commands and options.

use siltstone::Advice;

/// Returns a message followed by its advice, if there is any.
pub fn with_advice(message: &str, advice: Option<&Advice>) -> String {
    match advice.and_then(text) {
        Some(advice) => format!("{message}; {advice}"),
        None => message.to_owned(),
    }
}

fn text(advice: &Advice) -> Option<String> {
    Some(match advice {
        Advice::RecoverSeries { series } => format!(
            "`silt recover {series}` restores the last trusted head and brings back snapshots \
             that later heads removed"
        ),
        Advice::UnprotectSnapshot { snapshot } => format!("run `silt unprotect {snapshot}` first"),
        Advice::FinishKeyRemoval { key } => format!(
            "if the removal was interrupted, finish it with another key: `silt key remove {key}`"
        ),
        Advice::Unmount { folder } => format!("run `silt umount {folder}` first"),
        advice => fixed_text(advice)?.to_owned(),
    })
}

/// Returns the text of an advice without fields.
fn fixed_text(advice: &Advice) -> Option<&'static str> {
    Some(match advice {
        Advice::InitRepository => "`silt init` makes one",
        Advice::ListSnapshots => "`silt snapshots` lists them",
        Advice::ListDeletedSnapshots => {
            "`silt snapshots --deleted` lists snapshots that can be brought back"
        }
        Advice::ListKeys => "`silt key list` shows them",
        Advice::ListPlaces => "`silt copies` lists them",
        Advice::ShowSnapshot => {
            "`silt show` prints the time since which every segment is known to be right"
        }
        Advice::Check => "`silt check` names the missing objects",
        Advice::CheckData => {
            "run `silt check --read-data` where the repository can be written, before you back up"
        }
        Advice::KeepSomething => "add at least one --keep rule",
        Advice::HealPlaces => "`silt copies heal` replaces damaged objects with good copies",
        Advice::AddPlace => "`silt copies add` adds a copy or brings one up to date",
        Advice::ReachPlace => {
            "make it reachable, or record its new location with `silt copies move`; a copy can be \
             dropped with `silt copies remove`, a node that is lost with `silt node remove --lost`"
        }
        Advice::ReplaceNode => {
            "bring its newer state back, or give it up with `silt node remove --lost` once nothing \
             in it is needed: backups store again what they need"
        }
        Advice::AddKeyForSeries => "make a key for it with `silt key add --series`",
        Advice::ReplicateForeign => {
            "pass --foreign if it is the right one; the first time takes longer than backing up \
             everything"
        }
        Advice::InitReplica => "`silt replicate --init` makes a replica where nothing is yet",
        Advice::ServeInit => "with exec:, the command must run `silt serve replica --init`",
        Advice::UseReadingKey => "use a key that was made without --write-only",
        Advice::WaitForSeries => "try again later, or pass --wait",
        Advice::AcceptOlderState => "if you rolled the repository back, pass --accept-older",
        Advice::AcceptRemovedSeries => "if you removed it, pass --accept-older",
        Advice::ReplaceTarget => {
            "pass --force to replace it, or --in-place to overwrite only what differs"
        }
        Advice::OverwriteDevice => "pass --force to overwrite it",
        Advice::CreateTarget => "restore without --in-place to create it",
        Advice::RestoreInPlace => "only --in-place targets can be",
        Advice::FreeTarget => "stop that program first, or restore elsewhere",
        Advice::ReadInUse => "take a snapshot first, or pass --allow-in-use",
        Advice::ConvertImage => {
            "convert it with `qemu-img convert -O qcow2`, or pass --format raw to store the file's \
             bytes unchanged"
        }
        Advice::ReadRaw => "pass --format raw to read its bytes unchanged",
        Advice::NameFormat => {
            "pass --format qcow2 if it is a qcow2 image, or --format raw if it is a raw disk"
        }
        Advice::AllowBackingFolder => {
            "if it is part of the disk, pass --allow-backing with its folder"
        }
        Advice::NameMapForm => "if `rbd diff` wrote it, pass --changed-form rbd",
        Advice::UseBucketWithLocks => "use a bucket that has Object Lock, or unset SILT_S3_LOCK",
        Advice::GiveS3Credentials => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile"
        }
        Advice::GiveAzureCredentials => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
        }
        Advice::GiveGoogleCredentials => {
            "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_commands_and_variables_of_this_program() {
        let unmount = Advice::Unmount { folder: "mnt".to_owned() };
        for (advice, wanted) in [
            (unmount, "`silt umount mnt`"),
            (Advice::UseBucketWithLocks, "SILT_S3_LOCK"),
            (Advice::InitReplica, "`silt replicate --init`"),
            (Advice::ServeInit, "`silt serve replica --init`"),
            (Advice::GiveS3Credentials, "AWS_ACCESS_KEY_ID"),
            (Advice::GiveAzureCredentials, "AZURE_STORAGE_ACCOUNT_KEY"),
            (Advice::GiveGoogleCredentials, "GOOGLE_APPLICATION_CREDENTIALS"),
        ] {
            let message = with_advice("it failed", Some(&advice));
            assert!(message.starts_with("it failed; ") && message.contains(wanted), "{message}");
        }
        assert_eq!(with_advice("it failed", None), "it failed");
    }
}
