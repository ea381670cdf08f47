//! `silt agent`.

use std::sync::Arc;

use silt_agent::{Notifier, Plan, Process, Program, calendars, show_plan};
use silt_format::Error;
use silt_location::Opener;

use super::{Failure, Session, Traffic};
use crate::cli::{Agent, AgentRun};
use crate::noted;

/// What the processes of backups do not get: they are not the service.
const OF_THE_SERVICE: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

pub fn run(session: &Session<'_>, args: &Agent) -> Result<u8, Failure> {
    let now_ns = session.context.env.now_ns();
    match args {
        Agent::Run(args) => work(session, args),
        Agent::CheckConfig => {
            let profile = session.chosen.profile_name();
            show_plan(&plan(session)?, profile, now_ns, session.global.json);
            Ok(0)
        }
        Agent::Calendar(args) => {
            let count = usize::from(args.count);
            calendars(&args.expressions, count, now_ns, session.global.json)
        }
    }
}

fn plan(session: &Session<'_>) -> Result<Plan, Failure> {
    // A mistyped location should not be found out by the first backup.
    session.location()?;
    let settings = session.chosen.agent.clone().unwrap_or_default();
    let series = session.chosen.profile.series.iter();
    let series = series.map(|(name, series)| (name.clone(), series.schedule.clone())).collect();
    Plan::new(settings, &session.context.env.process().host, &series)
}

fn work(session: &Session<'_>, args: &AgentRun) -> Result<u8, Failure> {
    let plan = plan(session)?;
    let file = std::env::current_exe().map_err(|error| Error::io("find this program", error))?;
    let program = Program {
        file,
        arguments: session.chosen.arguments(session.global),
        hidden: OF_THE_SERVICE.to_vec(),
        forget_after_backup: plan.settings.forget_after_backup,
        check_data: plan.settings.check_data.clone(),
        spool: plan.settings.round_spool,
        reclaim_with_agents: plan.settings.reclaim_with_agents,
    };
    let socket = args.notify_socket.as_deref();
    let process = Process {
        plan,
        program,
        env: Arc::clone(&session.context.env),
        folder: noted::folder(session.global).map(|folder| folder.join("agent")),
        notifier: Notifier::new(socket, args.watchdog_usec, args.watchdog_pid),
        open: &|| anew(session).open(Traffic::Other, false),
        json: session.global.json,
    };
    process.run()
}

/// The same settings with storages of its own, so that none is kept of an attempt that failed.
fn anew<'a>(session: &Session<'a>) -> Session<'a> {
    Session {
        global: session.global,
        reporter: Arc::clone(&session.reporter),
        context: session.context.clone(),
        noted: Arc::clone(&session.noted),
        opener: Opener::new(session.global.connections, session.opener.kinds()),
        chosen: session.chosen.clone(),
    }
}
