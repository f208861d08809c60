//! Table and brute force for the choice of a profile.

use cnlab_model::mig::{Mode, Product, Profile, Shape, Unavailable, available};
use proptest::prelude::*;

use super::{
    super::{Bandwidth, Cut, Need, NoCut, NoProfile, blocks_for, cut, part, smallest},
    any_product,
};

#[test]
fn smallest_profile_of_an_h100_by_multiprocessors_and_memory() {
    let memory = [1, 9_984, 9_985, 20_090, 20_091, 40_448, 40_449, 81_152];
    for (multiprocessors, names) in [
        (1, "1g.10 1g.10 1g.20 1g.20 3g.40 3g.40 7g.80 7g.80"),
        (16, "1g.10 1g.10 1g.20 1g.20 3g.40 3g.40 7g.80 7g.80"),
        (17, "1g.20 1g.20 1g.20 1g.20 3g.40 3g.40 7g.80 7g.80"),
        (26, "1g.20 1g.20 1g.20 1g.20 3g.40 3g.40 7g.80 7g.80"),
        (27, "2g.20 2g.20 2g.20 2g.20 3g.40 3g.40 7g.80 7g.80"),
        (33, "3g.40 3g.40 3g.40 3g.40 3g.40 3g.40 7g.80 7g.80"),
        (61, "4g.40 4g.40 4g.40 4g.40 4g.40 4g.40 7g.80 7g.80"),
        (65, "7g.80 7g.80 7g.80 7g.80 7g.80 7g.80 7g.80 7g.80"),
        (132, "7g.80 7g.80 7g.80 7g.80 7g.80 7g.80 7g.80 7g.80"),
    ] {
        for (memory_mib, name) in memory.into_iter().zip(names.split(' ')) {
            let need = Need {
                multiprocessors,
                memory_mib,
                media: false,
            };
            assert_eq!(
                smallest(Product::H100With80, need).map(|profile| profile.name.to_owned()),
                Ok(format!("{name}gb")),
                "{multiprocessors} multiprocessors, {memory_mib} MiB"
            );
        }
    }
    for (multiprocessors, memory_mib) in [(133, 1), (1, 81_153)] {
        let need = Need {
            multiprocessors,
            memory_mib,
            media: false,
        };
        assert_eq!(
            smallest(Product::H100With80, need),
            Err(NoProfile::TooLarge(Product::H100With80))
        );
    }
}

#[test]
fn media_engines_go_to_who_asks_for_them() {
    let media = |product, memory_mib| {
        let need = Need {
            multiprocessors: 1,
            memory_mib,
            media: true,
        };
        smallest(product, need).map(|profile| profile.name)
    };
    assert_eq!(media(Product::A100With40, 1), Ok("1g.5gb+me"));
    assert_eq!(media(Product::A100With40, 6_000), Ok("7g.40gb"));
    assert_eq!(media(Product::A30, 6_000), Ok("2g.12gb+me"));
    assert_eq!(media(Product::A30, 12_000), Ok("4g.24gb"));
}

#[test]
fn figures_that_nobody_saw_are_not_promised() {
    let need = |multiprocessors, memory_mib| Need {
        multiprocessors,
        memory_mib,
        media: false,
    };
    assert_eq!(
        smallest(Product::B200, need(30, 1)).map(|profile| profile.name),
        Ok("1g.45gb")
    );
    assert_eq!(
        smallest(Product::B200, need(40, 1)),
        Err(NoProfile::Unseen(Product::B200))
    );
    assert_eq!(part(Product::B200, 10), None);
}

proptest! {
    #[test]
    fn none_smaller_would_do(
        product in any_product(),
        multiprocessors in 0_u16..150,
        memory_mib in 0_u32..150_000,
        media: bool,
    ) {
        let need = Need { multiprocessors, memory_mib, media };
        let whole = product.profiles().last().unwrap().shape;
        let meets = |profile: &&Profile| {
            profile.multiprocessors.is_some_and(|have| have >= multiprocessors)
                && profile.memory_mib.is_some_and(|have| have >= memory_mib)
                && if media {
                    profile.name.ends_with("+me") || profile.shape == whole
                } else {
                    !profile.name.ends_with("+me")
                }
        };
        let best = product
            .profiles()
            .iter()
            .filter(meets)
            .min_by_key(|profile| (profile.shape.memory(), profile.shape.compute()));
        prop_assert_eq!(smallest(product, need).ok().map(|p| p.name).is_some(), best.is_some());
        if let (Ok(got), Some(best)) = (smallest(product, need), best) {
            prop_assert_eq!(got.shape.memory(), best.shape.memory());
            prop_assert_eq!(got.shape.compute(), best.shape.compute());
        }
    }

    #[test]
    fn blocks_of_an_instance_make_up_the_percentage(
        product in any_product(),
        percent in 1_u8..=100,
    ) {
        let Some(whole) = product.profiles().last().filter(|p| p.memory_mib.is_some()) else {
            return Ok(());
        };
        for profile in product.profiles() {
            let parts = u64::from(profile.shape.blocks());
            // Exactly: blocks/parts of the instance are at least percent/100 of the whole.
            let enough = |blocks: u64| {
                let compute = u64::from(whole.multiprocessors.unwrap()) * u64::from(percent);
                let memory = u64::from(whole.memory_mib.unwrap()) * u64::from(percent);
                blocks * u64::from(profile.multiprocessors.unwrap()) * 100 >= parts * compute
                    && blocks * u64::from(profile.memory_mib.unwrap()) * 100 >= parts * memory
            };
            let wanted = (1..=parts).find(|blocks| enough(*blocks));
            let got = blocks_for(product, profile.shape, percent).map(u64::from);
            prop_assert_eq!(got, wanted, "{} {}", profile.name, percent);
        }
    }
}

#[test]
fn twelve_blocks_of_the_gpu_fill_a_1g_of_an_h100() {
    let of = |percent| blocks_for(Product::H100With80, Shape::One, percent);
    assert_eq!(of(1), Some(2));
    assert_eq!(of(12), Some(14));
    assert_eq!(of(13), None);
    assert_eq!(blocks_for(Product::H100With80, Shape::Seven, 100), Some(98));
}

#[test]
fn full_bandwidth_gets_an_instance_or_a_reason() {
    let on = |mode| available("NVIDIA H100 80GB HBM3", 81_559 << 20, mode);
    assert_eq!(
        cut(on(Mode::Off), 25, Bandwidth::Shared),
        Ok(Cut::Blocks(25))
    );
    match cut(on(Mode::On), 25, Bandwidth::Own) {
        Ok(Cut::Instance(profile)) => assert_eq!(profile.name, "3g.40gb"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        cut(on(Mode::Off), 25, Bandwidth::Own)
            .unwrap_err()
            .to_string(),
        "full memory bandwidth needs MIG: MIG mode is off on this H100-80GB; \
         an administrator can switch it on while the GPU is idle"
    );
    assert_eq!(
        cut(
            Err(Unavailable::Absent("NVIDIA L40S".to_owned())),
            25,
            Bandwidth::Own
        ),
        Err(NoCut::Unavailable(Unavailable::Absent(
            "NVIDIA L40S".to_owned()
        )))
    );
}
