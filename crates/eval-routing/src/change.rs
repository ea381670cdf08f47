//! Which rule of AppDedupe costs what: each is changed by itself.

use silt_routing::{
    Answers, AppDedupe, Application, Director, Domains, Grain, Lookup, NodeOptions, Piece,
    Placement, Router,
};

/// A rule, changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Every application has all nodes from the start.
    AllNodes,
    /// A node joins an application only when that is full by half.
    LateNodes,
    /// Resemblance is not divided by load.
    Unweighted,
    /// The handprint names nodes by its remainder, as Sigma-Dedupe's does.
    Modulo,
    /// Both: all nodes, by the remainder.
    AllByModulo,
    /// Every node of the application is asked, not only those that the handprint names.
    AskAll,
    /// What no representative finds is looked up in a full index of the node.
    ExactNodes,
    /// One table for all applications.
    OneTable,
    /// The cache of a node holds all its containers.
    LargeCache,
    /// All nodes from the start, all of them asked, and exact nodes: what is lost then is lost by
    /// taking super-chunks as wholes.
    AllOfThese,
}

impl Change {
    pub const ALL: [Self; 10] = [
        Self::AllNodes,
        Self::LateNodes,
        Self::Unweighted,
        Self::Modulo,
        Self::AllByModulo,
        Self::AskAll,
        Self::ExactNodes,
        Self::OneTable,
        Self::LargeCache,
        Self::AllOfThese,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AllNodes => "applications have all nodes from the start",
            Self::LateNodes => "nodes join when others have 1.5 times the mean",
            Self::Unweighted => "resemblance is not divided by load",
            Self::Modulo => "handprints name nodes by remainder",
            Self::AllByModulo => "all nodes from the start, by remainder",
            Self::AskAll => "all nodes of the application are asked",
            Self::ExactNodes => "nodes look in a full index too",
            Self::OneTable => "one table for all applications",
            Self::LargeCache => "nodes cache all containers",
            Self::AllOfThese => "all nodes from the start, all asked, full indexes",
        }
    }

    fn has_all_nodes(self) -> bool {
        matches!(self, Self::AllNodes | Self::AllByModulo | Self::AllOfThese)
    }

    fn asks_all(self) -> bool {
        matches!(self, Self::AskAll | Self::AllOfThese)
    }
}

/// AppDedupe with a rule changed.
pub fn router(change: Change, mut router: AppDedupe) -> Box<dyn Router> {
    match change {
        Change::LateNodes => router.director = Director::new(1.5, 0),
        Change::Unweighted => router.is_weighted = false,
        Change::Modulo | Change::AllByModulo => router.placement = Placement::Modulo,
        _ => {}
    }
    Box::new(Changed { change, router, known: Vec::new() })
}

/// The nodes that go with it, of those of AppDedupe.
pub fn options(change: Change, mut options: NodeOptions) -> NodeOptions {
    match change {
        Change::ExactNodes | Change::AllOfThese => options.lookup = Lookup::Exact,
        Change::OneTable => options.domains = Domains::One,
        Change::LargeCache => options.cache_containers = usize::MAX,
        _ => {}
    }
    options
}

struct Changed {
    change: Change,
    router: AppDedupe,
    /// Applications that have all nodes.
    known: Vec<Application>,
}

impl Router for Changed {
    fn grain(&self) -> Grain {
        self.router.grain()
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let application = piece.application;
        if self.change.has_all_nodes() && !self.known.contains(&application) {
            self.router.director.assign(application, (0..answers.nodes()).collect());
            self.known.push(application);
        }
        if !self.change.asks_all() {
            return self.router.route(piece, answers);
        }
        let nodes = self.router.director.nodes(application, answers);
        let handprint = piece.handprint(self.router.handprint);
        let sum: u64 = nodes.iter().map(|node| answers.used_bytes(*node)).sum();
        let mean = (sum as f64 / nodes.len() as f64).max(1.0);
        let value = |node: usize| {
            let found = answers.similar(node, application, &handprint) as f64;
            found * mean / (answers.used_bytes(node) as f64).max(1.0)
        };
        let valued = nodes.iter().map(|node| (value(*node), *node));
        let best = valued.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|best| best.0 > 0.0);
        let least = nodes.iter().copied().min_by_key(|node| (answers.used_bytes(*node), *node));
        best.map(|(_, node)| node).or(least).unwrap_or(0)
    }
}
