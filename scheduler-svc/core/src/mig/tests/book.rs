//! The book under random traces, against a checker that keeps its own account.

use std::collections::BTreeMap;

use cnlab_model::{
    id::{GrantId, TeamId},
    mig::{Grid, Instance, Product, Shape},
};

use super::{
    super::{Ask, Book, Boundary, NoRoom, Popularity, Want, Worth},
    process::Dice,
    rounds,
};

fn grant(number: u128) -> GrantId {
    format!("grt_{number:026}").parse().unwrap()
}

fn team(number: u128) -> TeamId {
    format!("team_{number:026}").parse().unwrap()
}

fn ask(number: u128, of: u128, want: Want, boundary: Boundary) -> Ask {
    Ask {
        grant: grant(number),
        team: team(of),
        want,
        boundary,
    }
}

fn add(book: &mut Book, worth: &Worth, ask: &Ask) -> Result<Instance, NoRoom> {
    let room = book.best(ask, worth)?;
    book.take(ask, &room)?;
    Ok(room.instance)
}

#[test]
fn a_1g_hosts_fourteen_blocks_and_the_fifteenth_goes_elsewhere() {
    let worth = Worth::new(Grid::Seven, &Popularity::even());
    let mut book = Book::new(Product::H100With80);
    let one = |number| ask(number, 1, Want::Slice(1), Boundary::Open);
    let first = add(&mut book, &worth, &one(0)).unwrap();
    assert_eq!(first.shape, Shape::One);
    for number in 1..14 {
        assert_eq!(add(&mut book, &worth, &one(number)), Ok(first));
    }
    assert_eq!(book.used(first.start).count(), 14);
    let second = add(&mut book, &worth, &one(14)).unwrap();
    assert_ne!(second.start, first.start);
    // Until seven instances are full: 98 tenants.
    for number in 15..98 {
        add(&mut book, &worth, &one(number)).unwrap();
    }
    assert_eq!(add(&mut book, &worth, &one(98)), Err(NoRoom::TooFull));
    // The last tenant closes its instance.
    for number in 0..13 {
        assert_eq!(book.give(grant(number)), Some((first, false)));
    }
    assert_eq!(book.give(grant(13)), Some((first, true)));
    assert_eq!(book.give(grant(13)), None);
    assert_eq!(book.layout().instances().count(), 6);
    assert_eq!(
        add(
            &mut book,
            &worth,
            &ask(200, 1, Want::Slice(99), Boundary::Open)
        ),
        Err(NoRoom::NeverFits)
    );
}

#[test]
fn instances_and_blocks_are_on_one_gpu_at_once() {
    let worth = Worth::new(Grid::Seven, &Popularity::even());
    let mut book = Book::new(Product::H100With80);
    add(
        &mut book,
        &worth,
        &ask(1, 1, Want::Whole(Shape::Three), Boundary::Open),
    )
    .unwrap();
    add(
        &mut book,
        &worth,
        &ask(2, 2, Want::Slice(14), Boundary::Open),
    )
    .unwrap();
    // 10 percent of the GPU are 12 blocks of a 1g; 20 percent need a 2g.
    let ten = add(
        &mut book,
        &worth,
        &ask(3, 3, Want::Percent(10), Boundary::Open),
    )
    .unwrap();
    let twenty = add(
        &mut book,
        &worth,
        &ask(4, 3, Want::Percent(20), Boundary::Open),
    )
    .unwrap();
    assert_eq!((ten.shape, twenty.shape), (Shape::One, Shape::Two));
    let (_, blocks) = book.tenant(grant(3)).unwrap();
    assert_eq!(blocks.count(), 12);
    assert_eq!(book.layout().compute_taken(), 7);
    // Eight memory slices stand for a hundred blocks.
    assert_eq!(book.numbered().count(), 100);
    assert_eq!(
        add(
            &mut book,
            &worth,
            &ask(3, 3, Want::Slice(1), Boundary::Open)
        ),
        Err(NoRoom::Twice)
    );
}

#[test]
fn teams_that_asked_not_to_share_do_not() {
    let worth = Worth::new(Grid::Seven, &Popularity::even());
    let mut book = Book::new(Product::H100With80);
    let open = |number, of| ask(number, of, Want::Slice(1), Boundary::Open);
    let walled = |number, of| ask(number, of, Want::Slice(1), Boundary::Instance);
    let alone = |number, of| ask(number, of, Want::Slice(1), Boundary::Gpu);
    let shared = add(&mut book, &worth, &open(1, 1)).unwrap();
    // The one with the wish comes second, then another team comes after it.
    let own = add(&mut book, &worth, &walled(2, 2)).unwrap();
    assert_ne!(own.start, shared.start);
    assert_eq!(add(&mut book, &worth, &open(3, 3)), Ok(shared));
    assert_eq!(add(&mut book, &worth, &open(4, 2)), Ok(shared));
    assert_eq!(add(&mut book, &worth, &walled(5, 2)), Ok(own));
    assert_eq!(add(&mut book, &worth, &alone(6, 1)), Err(NoRoom::OtherTeam));
    let mut empty = Book::new(Product::H100With80);
    add(&mut empty, &worth, &alone(7, 1)).unwrap();
    assert_eq!(add(&mut empty, &worth, &open(8, 2)), Err(NoRoom::OtherTeam));
    assert!(add(&mut empty, &worth, &open(9, 1)).is_ok());
    // A place that was good for somebody else is refused.
    let room = empty.best(&open(10, 1), &worth).unwrap();
    assert_eq!(empty.take(&open(10, 2), &room), Err(NoRoom::OtherTeam));
    let room = book.best(&open(11, 1), &worth).unwrap();
    assert_eq!(book.take(&walled(11, 4), &room), Err(NoRoom::TooFull));
}

/// The checker: looks at what the book says and at what was asked, slice by slice, block by
/// block, pair by pair.
fn check(book: &Book, asks: &BTreeMap<u128, Ask>) {
    let grid = book.product().grid();
    let mut slices = [0_u8; 8];
    let mut compute = 0;
    let mut media = 0;
    for instance in book.layout().instances() {
        let profile = book.product().profile(instance.shape).expect("a profile");
        assert!(grid.starts(instance.shape).contains(&instance.start));
        let first = usize::from(instance.start);
        for slice in &mut slices[first..first + usize::from(instance.shape.memory())] {
            *slice += 1;
        }
        compute += instance.shape.compute();
        media += u8::from(profile.name.ends_with("+me"));
        assert!(
            asks.keys()
                .any(|n| book.tenant(grant(*n)).unwrap().0 == instance),
            "an instance without a tenant"
        );
    }
    assert!(slices.iter().all(|count| *count <= 1));
    assert!(compute <= grid.compute() && media <= 1);
    let places: Vec<(&Ask, Instance, Vec<u8>)> = asks
        .iter()
        .map(|(number, ask)| {
            let (instance, blocks) = book.tenant(grant(*number)).expect("a tenant");
            let blocks: Vec<u8> = (0..100).filter(|b| blocks.contains(*b)).collect();
            assert!(blocks.iter().all(|b| *b < 14 * instance.shape.compute()));
            (ask, instance, blocks)
        })
        .collect();
    for (index, (ask, instance, blocks)) in places.iter().enumerate() {
        match ask.want {
            Want::Whole(shape) => assert_eq!(instance.shape, shape),
            Want::Slice(count) => assert_eq!(blocks.len(), usize::from(count)),
            Want::Percent(_) => assert!(!blocks.is_empty()),
        }
        for (other, other_instance, other_blocks) in &places[index + 1..] {
            let same = instance == other_instance;
            if same {
                assert!(blocks.iter().all(|block| !other_blocks.contains(block)));
                assert!(!matches!(ask.want, Want::Whole(_)));
                assert!(!matches!(other.want, Want::Whole(_)));
            }
            if ask.team != other.team {
                for boundary in [ask.boundary, other.boundary] {
                    assert_ne!(boundary, Boundary::Gpu);
                    assert!(!(same && boundary == Boundary::Instance));
                }
            }
        }
    }
}

#[test]
fn random_traces_on_every_product_stay_legal() {
    for product in Product::ALL {
        let worth = Worth::new(product.grid(), &Popularity::even());
        for seed in 0..rounds(2) {
            let mut dice = Dice::new(seed);
            let mut book = Book::new(product);
            let mut asks: BTreeMap<u128, Ask> = BTreeMap::new();
            for number in 0..200_u128 {
                if dice.below(5) < 2
                    && let Some(leaving) = asks
                        .keys()
                        .copied()
                        .nth(usize::try_from(dice.below(asks.len().max(1) as u64)).unwrap())
                {
                    assert!(book.give(grant(leaving)).is_some());
                    asks.remove(&leaving);
                }
                let want = match dice.below(3) {
                    0 => {
                        let profiles = product.profiles();
                        let index = usize::try_from(dice.below(profiles.len() as u64)).unwrap();
                        Want::Whole(profiles[index].shape)
                    }
                    1 => Want::Slice(u8::try_from(dice.below(20)).unwrap()),
                    _ => Want::Percent(u8::try_from(dice.below(30)).unwrap()),
                };
                let boundary = match dice.below(8) {
                    0 => Boundary::Gpu,
                    1 | 2 => Boundary::Instance,
                    _ => Boundary::Open,
                };
                let ask = ask(number, u128::from(dice.below(3)), want, boundary);
                let before = book.clone();
                match add(&mut book, &worth, &ask) {
                    Ok(_) => {
                        asks.insert(number, ask);
                    }
                    Err(why) => {
                        assert_eq!(book, before);
                        if why == NoRoom::TooFull {
                            refusal_is_true(&book, &ask);
                        }
                    }
                }
                check(&book, &asks);
            }
        }
    }
}

/// A GPU is too full for a shape only when no start index of it is legal.
fn refusal_is_true(book: &Book, ask: &Ask) {
    let shape = match ask.want {
        Want::Whole(shape) => shape,
        Want::Slice(blocks) if blocks <= 14 => Shape::One,
        Want::Slice(_) | Want::Percent(_) => return,
    };
    assert!(
        book.layout().starts(shape).next().is_none(),
        "{ask:?} was refused by {:?}",
        book.layout()
    );
}
