//! Which digit is in a picture of 7 lines of 5 marks? classify LIBRARY IMAGE

use std::error::Error;
use tilewright::{Model, View};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, library, picture] = arguments.as_slice() else {
        return Err("usage: classify LIBRARY IMAGE".into());
    };
    let marks = std::fs::read_to_string(picture)?;
    let image: Vec<f32> = marks.split_whitespace().flat_map(str::chars).map(|mark| f32::from(mark == '#')).collect();

    let model = Model::open(library)?;
    let outputs = model.run(&[View::new(&image, &[1, 7, 5])])?;
    let digit = outputs[1].data::<i64>()?[0];
    println!("a {digit} ({:.1}%)", 100.0 * outputs[0].data::<f32>()?[digit as usize]);
    Ok(())
}
