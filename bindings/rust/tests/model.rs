//! Tests of the binding for Rust, on what bindings/models.py wrote to the folder TILEWRIGHT_MODELS.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tilewright::{DType, Dimension, Error, Kind, Model, Tensor, View};

const IDS: [i64; 3] = [4, 0, 2];

fn folder() -> PathBuf {
    PathBuf::from(std::env::var("TILEWRIGHT_MODELS").expect("TILEWRIGHT_MODELS names the folder of the libraries"))
}

fn open(name: &str) -> Result<Model, Error> {
    Model::open(folder().join(format!("{name}.so")))
}

fn table() -> Vec<f32> {
    (0..20).map(|i| i as f32 + 0.5).collect()
}

fn run_rows(model: &Model) -> Result<Vec<Tensor>, Error> {
    model.run(&[View::new(&table(), &[5, 4]), View::new(&IDS, &[3])])
}

fn check_rows(rows: &Tensor) {
    let expected: Vec<f32> = IDS.iter().flat_map(|id| table()[*id as usize * 4..][..4].to_vec()).collect();
    assert_eq!(rows.shape(), [3, 4]);
    assert_eq!(rows.data::<f32>().unwrap(), expected);
}

#[track_caller]
fn expect<T>(result: Result<T, Error>, kind: Kind, text: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error that says '{text}'"));
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn load() {
    let model = open("digits").unwrap();
    assert_eq!(model.name().unwrap(), "digits");
    let inputs = model.inputs().unwrap();
    assert_eq!((inputs.len(), inputs[0].name.as_str(), inputs[0].dtype), (1, "image", DType::Float32));
    let batch = Dimension::Symbolic("batch".to_string());
    assert_eq!(inputs[0].shape, [batch.clone(), Dimension::Fixed(7), Dimension::Fixed(5)]);
    let outputs = model.outputs().unwrap();
    assert_eq!((outputs[1].name.as_str(), outputs[1].dtype, &outputs[1].shape), ("digit", DType::Int64, &vec![batch]));
    assert!(model.metadata().unwrap().contains("\"library\":\"digits\""));
    model.set_num_threads(1).unwrap();
    let bytes = std::fs::read(folder().join("digits.so")).unwrap();
    assert_eq!(Model::from_bytes(&bytes).unwrap().name().unwrap(), "digits");
}

#[test]
fn run() {
    let model = open("rows").unwrap();
    check_rows(&run_rows(&model).unwrap()[0]);
    let mut outputs = [Tensor::zeros(DType::Float32, &[3, 4]).unwrap()];
    model.run_into(&[View::new(&table(), &[5, 4]), View::new(&IDS, &[3])], &mut outputs).unwrap();
    check_rows(&outputs[0]);
}

#[test]
fn dynamic_shapes() {
    let model = open("join").unwrap();
    let (left, scale, right) = ([1f32, 2., 3., 4.], [10f32, 100.], [5f32, 6., 7., 8., 9., 10.]);
    let inputs = [View::new(&left, &[2, 2]), View::new(&scale, &[2]), View::new(&right, &[3, 2])];
    assert_eq!(model.output_shapes(&inputs).unwrap(), [[5, 2]]);
    let joined = model.run(&inputs).unwrap();
    assert_eq!(joined[0].data::<f32>().unwrap(), [10., 20., 300., 400., 5., 6., 7., 8., 9., 10.]);
    let none: [f32; 0] = [];
    let fewer = [View::new(&none, &[0, 2]), View::new(&none, &[0]), View::new(&right, &[3, 2])];
    assert_eq!(model.run(&fewer).unwrap()[0].data::<f32>().unwrap(), right);
}

#[test]
fn async_runs() {
    let inputs = |ids: [i64; 3]| vec![Tensor::new(&table(), &[5, 4]).unwrap(), Tensor::new(&ids, &[3]).unwrap()];
    let model = open("rows").unwrap();
    let jobs: Vec<_> = (0..8).map(|_| model.run_async(inputs(IDS))).collect();
    let failing = model.run_async(inputs([0, 7, 1]));
    drop(model); // jobs keep it open
    for job in jobs {
        check_rows(&job.join().unwrap()[0]);
    }
    expect(failing.join(), Kind::Data, "lookup");
}

#[test]
fn errors_arguments() {
    let model = open("rows").unwrap();
    let (table, doubles) = (table(), [0f64; 20]);
    let ids = View::new(&IDS, &[3]);
    expect(model.run(&[View::new(&doubles, &[5, 4]), ids]), Kind::Type, "is of float64, expected float32");
    expect(model.run(&[View::new(&table, &[4, 5]), ids]), Kind::Shape, "axis 0 must be 5, not 4");
    expect(model.run(&[View::new(&table, &[1, 5, 4]), ids]), Kind::Shape, "3 dimensions");
    expect(model.run(&[View::new(&table[1..], &[5, 4]), ids]), Kind::Shape, "76 bytes, its shape needs 80");
    expect(model.run(&[ids]), Kind::Argument, "2 inputs, 1 were given");
    let wrong = [0i64, 7, 1];
    expect(model.run(&[View::new(&table, &[5, 4]), View::new(&wrong, &[3])]), Kind::Data, "out of range");
    let bytes = vec![0u8; 81];
    let shifted = (0..8).find(|at| (bytes.as_ptr() as usize + at) % 4 != 0).unwrap();
    let unaligned = View::of(DType::Float32, &bytes[shifted..], &[5, 4]);
    if bytes.len() - shifted >= 80 {
        expect(model.run(&[unaligned, ids]), Kind::Argument, "not aligned");
    }
    let mut few = [Tensor::zeros(DType::Float32, &[2, 4]).unwrap()];
    expect(model.run_into(&[View::new(&table, &[5, 4]), ids], &mut few), Kind::Shape, "output 'rows'");
    let rows = run_rows(&model).unwrap();
    expect(rows[0].data::<i64>(), Kind::Type, "is of Float32, not of Int64");
    expect(Tensor::zeros(DType::Float32, &[-1]), Kind::Shape, "cannot have");
    expect(Tensor::zeros(DType::Float32, &[i64::MAX, 2]), Kind::Shape, "cannot have");
    expect(Tensor::new(&[1f32], &[2]), Kind::Shape, "1 elements do not fit");
    let join = open("join").unwrap();
    let left = [0f32; 4];
    let views = [View::new(&left, &[2, 2]), View::new(&left, &[4]), View::new(&left, &[2, 2])];
    expect(join.run(&views), Kind::Shape, "'scale' has the shape [4], expected [n]");
}

#[test]
fn errors_libraries() {
    expect(Model::open("/nowhere/model.so"), Kind::File, "No such file");
    expect(Model::open("zero\0byte"), Kind::File, "zero byte");
    expect(open("loop"), Kind::Unsupported, "virtual machine");
    expect(open("functions"), Kind::Unsupported, "not a model");
    expect(Model::from_bytes(&[]), Kind::Library, "not a shared library");
    let mut count = 0;
    for item in std::fs::read_dir(folder().join("damaged")).unwrap() {
        let path = item.unwrap().path();
        let error = Model::open(&path).expect_err("a damaged library");
        assert!(matches!(error.kind(), Kind::Library | Kind::Unsupported), "{error}");
        count += 1;
    }
    assert!(count > 20);
}

#[test]
fn errors_closed() {
    let model = open("rows").unwrap();
    let same = model.clone();
    model.close();
    model.close();
    expect(run_rows(&same), Kind::Closed, "has been closed");
    expect(same.inputs(), Kind::Closed, "has been closed");
    expect(same.run_async(vec![]).join(), Kind::Closed, "has been closed");
}

#[test]
fn errors_threads() {
    let model = open("rows").unwrap();
    let model = &model;
    thread::scope(|scope| {
        let hammers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || loop {
                    match run_rows(model) {
                        Ok(rows) => check_rows(&rows[0]),
                        Err(error) => break error,
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(20));
        model.close();
        for hammer in hammers {
            assert_eq!(hammer.join().unwrap().kind(), Kind::Closed);
        }
    });
}

#[test]
fn gpu_refused() {
    expect(open("device_open"), Kind::Unsupported, "device (opencl)");
}

/// The same answers on a device as on the processor.
#[test]
#[ignore = "needs a device: TILEWRIGHT_GPU"]
fn gpu() {
    let image: Vec<f32> = (0..35).map(|i| f32::from(u8::from(i % 3 == 0))).collect();
    let run = |name| open(name).unwrap().run(&[View::new(&image, &[1, 7, 5])]).unwrap();
    let (here, there) = (run("digits"), run("device"));
    assert_eq!(here[1].data::<i64>().unwrap(), there[1].data::<i64>().unwrap());
    let pairs = here[0].data::<f32>().unwrap().iter().zip(there[0].data::<f32>().unwrap());
    pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-5));
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn leaks() {
    let round = || {
        let model = open("join").unwrap();
        let rows = vec![1f32; 20_000];
        let scale = vec![1f32; 10_000];
        model.run(&[View::new(&rows, &[10_000, 2]), View::new(&scale, &[10_000]), View::new(&rows, &[10_000, 2])]).unwrap();
    };
    (0..20).for_each(|_| round());
    let before = resident();
    // A leak of the outputs alone would be 16 MB.
    (0..100).for_each(|_| round());
    assert!(resident() < before + (8 << 20), "{before} {}", resident());
}
