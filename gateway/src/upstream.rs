//! The services behind the gateway and the channels to them.

use std::time::Duration;

use cnlab_service::{
    Secret, StartError,
    channel::{self, UpstreamChannel},
};

/// A service that has public methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// Servers, catalogue.
    Scheduler,
    /// Accounts, usage.
    Billing,
}

impl Upstream {
    /// Who serves this proto package.
    #[must_use]
    pub fn of_package(package: &str) -> Option<Self> {
        match package {
            "cnlab.scheduler.v1" => Some(Self::Scheduler),
            "cnlab.billing.v1" => Some(Self::Billing),
            _ => None,
        }
    }

    /// The service's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler-svc",
            Self::Billing => "billing-svc",
        }
    }
}

/// One channel per service. A channel multiplexes, so one is enough.
#[derive(Debug, Clone)]
pub struct Upstreams {
    scheduler: UpstreamChannel,
    billing: UpstreamChannel,
}

impl Upstreams {
    /// Channels to these endpoints. They connect when first used, and again by themselves.
    ///
    /// # Errors
    /// When an endpoint is no `http://host:port`.
    pub fn connect(
        scheduler: &str,
        billing: &str,
        key: &Secret,
        deadline: Duration,
    ) -> Result<Self, StartError> {
        Ok(Self {
            scheduler: channel::connect(scheduler, key, deadline)?,
            billing: channel::connect(billing, key, deadline)?,
        })
    }

    /// The channel to a service.
    #[must_use]
    pub fn channel(&self, upstream: Upstream) -> UpstreamChannel {
        match upstream {
            Upstream::Scheduler => self.scheduler.clone(),
            Upstream::Billing => self.billing.clone(),
        }
    }
}
