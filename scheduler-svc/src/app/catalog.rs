//! What servers can be made of: profiles and images, from data files.

use std::{collections::BTreeSet, path::Path, time::Duration};

use cnlab_model::ByteSize;
use cnlab_service::Span;
use scheduler_core::{
    estimate::ImageDefaults,
    near,
    profile::{Profile, Template},
};
use serde::Deserialize;

use super::App;
use crate::{
    cell::Image as CellImage,
    config::CatalogConfig,
    error::{CatalogError, SchedulerError},
    ports::Recipe,
};

const PROFILES: &str = include_str!("../../data/profiles.toml");
const IMAGES: &str = include_str!("../../data/images.toml");
/// How many near matches an error names.
const NEAR: usize = 3;

/// Profiles, templates and images.
#[derive(Debug)]
pub(crate) struct Catalogue {
    pub(crate) profiles: Vec<Profile>,
    pub(crate) templates: Vec<Template>,
    pub(crate) images: Vec<Image>,
}

/// One line of the image catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) recipe: Recipe,
    pub(crate) description: String,
    build: Duration,
    heavy_build: Duration,
    start: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    profile: Vec<ProfileLine>,
    #[serde(default)]
    template: Vec<TemplateLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileLine {
    name: String,
    gpu_type: String,
    percent: u8,
    memory: ByteSize,
    cpu_milli: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateLine {
    suffix: String,
    percent: u8,
    memory: ByteSize,
    cpu_milli: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageFile {
    image: Vec<ImageLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageLine {
    name: String,
    reference: String,
    description: String,
    packages: Vec<String>,
    #[serde(default)]
    heavy_packages: Vec<String>,
    build: Span,
    heavy_build: Option<Span>,
    start: Span,
}

impl Catalogue {
    /// The built-in catalogues, or the files in their place.
    pub(crate) fn load(config: &CatalogConfig) -> Result<Self, CatalogError> {
        let profiles = text(
            config.profiles_file.as_deref(),
            "data/profiles.toml",
            PROFILES,
        )?;
        let images = text(config.images_file.as_deref(), "data/images.toml", IMAGES)?;
        Self::parse(&profiles, &images)
    }

    fn parse(profiles: &Source, images: &Source) -> Result<Self, CatalogError> {
        let file: ProfileFile = profiles.read("profile")?;
        let all = file.profile.into_iter().map(|line| Profile {
            name: line.name,
            gpu_type: line.gpu_type,
            percent: line.percent,
            memory_bytes: line.memory.0,
            cpu_milli: line.cpu_milli,
        });
        let profile_list: Vec<Profile> = all.collect();
        let templates: Vec<Template> = file
            .template
            .into_iter()
            .map(|line| Template {
                suffix: line.suffix,
                percent: line.percent,
                memory_bytes: line.memory.0,
                cpu_milli: line.cpu_milli,
            })
            .collect();
        profiles.distinct(profile_list.iter().map(|profile| profile.name.as_str()))?;
        profiles.distinct(templates.iter().map(|template| template.suffix.as_str()))?;
        let sizes = profile_list
            .iter()
            .map(|profile| {
                (
                    &profile.name,
                    profile.percent,
                    profile.memory_bytes,
                    profile.cpu_milli,
                )
            })
            .chain(
                templates
                    .iter()
                    .map(|one| (&one.suffix, one.percent, one.memory_bytes, one.cpu_milli)),
            );
        for (name, percent, memory, cpu) in sizes {
            if !(1..=100).contains(&percent) || memory == 0 || cpu == 0 {
                return Err(profiles.wrong(format!(
                    "{name} needs a percent from 1 to 100, and memory and cpu_milli above 0"
                )));
            }
        }
        let file: ImageFile = images.read("image")?;
        let image_list: Vec<Image> = file.image.into_iter().map(Image::from).collect();
        images.distinct(image_list.iter().map(|image| image.recipe.name.as_str()))?;
        Ok(Self {
            profiles: profile_list,
            templates,
            images: image_list,
        })
    }

    /// The image of this short name.
    pub(crate) fn image(&self, name: &str) -> Result<&Image, SchedulerError> {
        self.images
            .iter()
            .find(|image| image.recipe.name == name)
            .ok_or_else(|| {
                let known = self.images.iter().map(|image| image.recipe.name.as_str());
                SchedulerError::ImageUnknown {
                    wanted: shown(name),
                    near: owned(near::matches(name, known, NEAR)),
                }
            })
    }
}

/// The profile of this name among those that are offered.
pub(crate) fn profile_named<'a>(
    offered: &'a [Profile],
    name: &str,
) -> Result<&'a Profile, SchedulerError> {
    offered
        .iter()
        .find(|profile| profile.name == name)
        .ok_or_else(|| {
            let known = offered.iter().map(|profile| profile.name.as_str());
            SchedulerError::ProfileUnknown {
                wanted: shown(name),
                near: owned(near::matches(name, known, NEAR)),
            }
        })
}

/// As much of a text from outside as an error repeats.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

pub(crate) fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

impl Image {
    /// What a first start is expected to take.
    pub(crate) fn defaults(&self, heavy: bool) -> ImageDefaults {
        ImageDefaults {
            build: if heavy { self.heavy_build } else { self.build },
            start: self.start,
        }
    }
}

impl From<ImageLine> for Image {
    fn from(line: ImageLine) -> Self {
        Self {
            recipe: Recipe {
                name: line.name,
                reference: line.reference,
                packages: line.packages,
                heavy_packages: line.heavy_packages,
            },
            description: line.description,
            build: line.build.0,
            heavy_build: line.heavy_build.unwrap_or(line.build).0,
            start: line.start.0,
        }
    }
}

struct Source {
    path: String,
    text: String,
}

fn text(file: Option<&Path>, name: &str, built_in: &str) -> Result<Source, CatalogError> {
    let Some(file) = file else {
        return Ok(Source {
            path: name.to_owned(),
            text: built_in.to_owned(),
        });
    };
    let path = file.display().to_string();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Source { path, text }),
        Err(source) => Err(CatalogError::Unreadable { path, source }),
    }
}

impl Source {
    fn read<T: serde::de::DeserializeOwned>(&self, what: &'static str) -> Result<T, CatalogError> {
        toml::from_str(&self.text).map_err(|source| CatalogError::Syntax {
            path: self.path.clone(),
            what,
            source: Box::new(source),
        })
    }

    fn distinct<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), CatalogError> {
        let mut seen = BTreeSet::new();
        for name in names {
            if name.is_empty() || !seen.insert(name) {
                return Err(self.wrong(format!("the name {name:?} is empty or stands there twice")));
            }
        }
        Ok(())
    }

    fn wrong(&self, problem: String) -> CatalogError {
        CatalogError::Content {
            path: self.path.clone(),
            problem,
        }
    }
}

/// A profile and how it stands with it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProfileStatus {
    pub(crate) profile: Profile,
    pub(crate) availability: Availability,
    /// Of the smallest GPU of the type; 0 where there is none.
    pub(crate) vram_bytes: u64,
    /// Whether every GPU of the type exists in the simulator only.
    pub(crate) simulated: bool,
}

/// When a server on a profile would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Availability {
    Now,
    Later(Option<Duration>),
    Never(String),
}

impl App {
    /// Every profile and how it stands with it now.
    pub(crate) async fn profiles(&self) -> Result<Vec<ProfileStatus>, SchedulerError> {
        self.cell.ask(|image, _| image.statuses()).await
    }
}

/// The profile nearest to one that cannot start here, among those that can.
pub(crate) fn nearest(cell: &CellImage, wanted: &Profile) -> Option<String> {
    let startable = cell
        .offered()
        .iter()
        .filter(|profile| cell.refused(profile, 0, None).is_none());
    scheduler_core::profile::nearest(wanted, startable).map(|profile| profile.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_catalogues_hold_the_quickstart() {
        let catalogue = Catalogue::load(&CatalogConfig::default()).unwrap();
        let profiles: Vec<_> = catalogue
            .profiles
            .iter()
            .map(|profile| {
                (
                    profile.name.as_str(),
                    profile.gpu_type.as_str(),
                    profile.percent,
                )
            })
            .collect();
        assert_eq!(
            profiles,
            [
                ("h100-25pct", "H100", 25),
                ("h100-full", "H100", 100),
                ("a100-50pct", "A100", 50),
                ("l40s-block", "L40S", 10)
            ]
        );
        assert!(catalogue.image("pytorch:2.4-cuda12.4").is_ok());
        for image in &catalogue.images {
            assert!(
                image
                    .recipe
                    .packages
                    .iter()
                    .any(|line| line.starts_with("jupyterlab==")),
                "{} pins no JupyterLab",
                image.recipe.name
            );
        }
        let unknown = catalogue.image("pytorch:2.4-cuda12.1").unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no image \"pytorch:2.4-cuda12.1\" in the catalogue"
        );
        assert!(
            matches!(&unknown, SchedulerError::ImageUnknown { near, .. } if near[0] == "pytorch:2.4-cuda12.4")
        );
    }

    #[test]
    fn a_wrong_file_says_what_is_wrong() {
        let source = |text: &str| Source {
            path: "p.toml".to_owned(),
            text: text.to_owned(),
        };
        let line = |percent: u8| {
            format!(
                "[[profile]]\nname='a'\ngpu_type='X'\npercent={percent}\nmemory='1gb'\ncpu_milli=1\n"
            )
        };
        for (profiles, says) in [
            (line(0), "percent from 1 to 100"),
            (line(101), "percent from 1 to 100"),
            (format!("{}{}", line(1), line(1)), "stands there twice"),
            ("nonsense".to_owned(), "is no profile file"),
            (format!("{}more = 1", line(1)), "is no profile file"),
        ] {
            let error = Catalogue::parse(&source(&profiles), &source(IMAGES)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
