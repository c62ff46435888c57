// Tests of the binding for C++: test FOLDER (what bindings/models.py wrote). Prints "ok <what>" for each.

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "tilewright.hpp"

using tilewright::Model;
using tilewright::Tensor;
using tilewright::View;

extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // of the address sanitizer

static std::filesystem::path folder;

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      std::cerr << __FILE__ << ":" << __LINE__ << ": not so: " #condition "\n"; \
      std::exit(1); \
    } \
  } while (0)

template <class Expected, class Function>
static void expect(std::string_view text, Function function) {
  try {
    function();
  } catch (const Expected& error) {
    if (std::string_view(error.what()).find(text) == std::string_view::npos) {
      std::cerr << "the error says something else than '" << text << "': " << error.what() << "\n";
      std::exit(1);
    }
    return;
  }
  std::cerr << "no error that says '" << text << "'\n";
  std::exit(1);
}

static Model open(const char* name) { return Model(folder / (std::string(name) + ".so")); }

static std::vector<float> table() {
  std::vector<float> values(20);
  for (int i = 0; i < 20; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(i) + 0.5f;
  return values;
}
static const std::vector<float> TABLE = table();
static const std::vector<std::int64_t> IDS = {4, 0, 2};

static bool are_rows(const Tensor& rows) {
  auto data = rows.data<float>();
  bool same = rows.shape() == tilewright::Shape{3, 4} && data.size() == 12;
  for (std::size_t i = 0; same && i < 12; ++i) same = data[i] == TABLE[static_cast<std::size_t>(IDS[i / 4]) * 4 + i % 4];
  return same;
}

static std::vector<Tensor> run_rows(const Model& model) { return model.run({{TABLE, {5, 4}}, {IDS, {3}}}); }

static void test_load() {
  Model model = open("digits");
  CHECK(model.name() == "digits");
  auto inputs = model.inputs();
  CHECK(inputs.size() == 1 && inputs[0].name == "image" && inputs[0].dtype == tilewright::DType::Float32);
  CHECK(inputs[0].shape.size() == 3 && inputs[0].shape[0].symbol == "batch" && !inputs[0].shape[0].size);
  CHECK(inputs[0].shape[1].size == 7 && inputs[0].shape[2].size == 5);
  auto outputs = model.outputs();
  CHECK(outputs.size() == 2 && outputs[1].name == "digit" && tilewright::name_of(outputs[1].dtype) == "int64");
  CHECK(model.metadata().find("\"library\":\"digits\"") != std::string::npos);
  model.set_num_threads(1);
  std::ifstream file(folder / "digits.so", std::ios::binary);
  std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  CHECK(Model(std::as_bytes(std::span(bytes))).name() == "digits");
}

static void test_run() {
  Model model = open("rows");
  CHECK(are_rows(run_rows(model)[0]));
  std::vector<float> rows(12);
  std::vector<View> inputs = {{TABLE, {5, 4}}, {IDS, {3}}}, outputs = {{std::span(rows), {3, 4}}};
  model.run_into(inputs, outputs);
  CHECK(rows[0] == TABLE[16]);
}

static void test_dynamic() {
  Model model = open("join");
  const std::vector<float> left = {1, 2, 3, 4}, scale = {10, 100}, right = {5, 6, 7, 8, 9, 10}, none;
  auto joined = model.run({{left, {2, 2}}, {scale, {2}}, {right, {3, 2}}});
  const std::vector<float> expected = {10, 20, 300, 400, 5, 6, 7, 8, 9, 10};
  CHECK(joined[0].shape() == (tilewright::Shape{5, 2}));
  CHECK(std::ranges::equal(joined[0].data<float>(), expected));
  auto fewer = model.run({{none, {0, 2}}, {none, {0}}, {right, {3, 2}}});
  CHECK(std::ranges::equal(fewer[0].data<float>(), right));
}

static void test_async() {
  std::vector<std::future<std::vector<Tensor>>> jobs;
  {
    Model model = open("rows");
    for (int i = 0; i < 8; ++i) jobs.push_back(model.run_async({{TABLE, {5, 4}}, {IDS, {3}}}));
    static_cast<void>(model.run_async({{TABLE, {5, 4}}, {IDS, {3}}}));  // nobody asks
  }
  for (auto& job : jobs) CHECK(are_rows(job.get()[0]));
  Model model = open("rows");
  const std::vector<std::int64_t> wrong = {0, 7, 1};
  auto job = model.run_async({{TABLE, {5, 4}}, {wrong, {3}}});
  expect<tilewright::DataError>("lookup", [&] { job.get(); });
  expect<tilewright::ShapeError>("table", [&] { static_cast<void>(model.run_async({{TABLE, {4, 5}}, {IDS, {3}}})); });
}

static void test_arguments() {
  Model model = open("rows");
  const std::vector<double> doubles(20);
  const std::vector<float> few(19);
  const std::vector<std::int64_t> wrong = {0, 7, 1};
  expect<tilewright::TypeError>("is of float64, expected float32", [&] { model.run({{doubles, {5, 4}}, {IDS, {3}}}); });
  expect<tilewright::ShapeError>("axis 0 must be 5, not 4", [&] { model.run({{TABLE, {4, 5}}, {IDS, {3}}}); });
  expect<tilewright::ShapeError>("3 dimensions", [&] { model.run({{TABLE, {1, 5, 4}}, {IDS, {3}}}); });
  expect<tilewright::ShapeError>("76 bytes, its shape needs 80", [&] { model.run({{few, {5, 4}}, {IDS, {3}}}); });
  expect<tilewright::ArgumentError>("2 inputs, 1 were given", [&] { model.run({{TABLE, {5, 4}}}); });
  expect<tilewright::DataError>("out of range", [&] { model.run({{TABLE, {5, 4}}, {wrong, {3}}}); });
  expect<tilewright::ArgumentError>("at least 0", [&] { model.set_num_threads(-1); });
  std::vector<float> own = TABLE;
  std::vector<View> inputs = {{own, {5, 4}}, {IDS, {3}}}, outputs = {{std::span(own).subspan(2, 12), {3, 4}}};
  expect<tilewright::ArgumentError>("shares memory", [&] { model.run_into(inputs, outputs); });
  auto rows = run_rows(model);
  expect<tilewright::TypeError>("is of float32, not of int64", [&] { rows[0].data<std::int64_t>(); });
  Model join = open("join");
  expect<tilewright::ShapeError>("'scale' has the shape [4], expected [n]",
                                 [&] { join.run({{few, {2, 2}}, {few, {4}}, {few, {2, 2}}}); });
}

static void test_libraries() {
  expect<tilewright::FileError>("No such file", [] { Model("/nowhere/model.so"); });
  expect<tilewright::UnsupportedError>("virtual machine", [] { open("loop"); });
  expect<tilewright::UnsupportedError>("not a model", [] { open("functions"); });
  int count = 0;
  for (const auto& item : std::filesystem::directory_iterator(folder / "damaged")) {
    expect<tilewright::Error>(item.path().filename().string(), [&] { Model model(item.path()); });
    ++count;
  }
  CHECK(count > 20);
}

static void test_closed() {
  Model model = open("rows");
  Model moved = std::move(model);
  CHECK(are_rows(run_rows(moved)[0]));
  expect<tilewright::ClosedError>("closed", [&] { run_rows(model); });  // NOLINT: moved from on purpose
  moved.close();
  moved.close();
  expect<tilewright::ClosedError>("closed", [&] { run_rows(moved); });
  expect<tilewright::ClosedError>("closed", [&] { moved.inputs(); });
  model = open("rows");
  CHECK(are_rows(run_rows(model)[0]));
}

static void test_threads() {
  Model model = open("rows");
  std::atomic<int> closed = 0, failures = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      try {
        while (true)
          if (!are_rows(run_rows(model)[0])) ++failures;
      } catch (const tilewright::ClosedError&) {
        ++closed;
      }
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  model.close();
  threads.clear();
  CHECK(closed == 4 && failures == 0);
}

static void test_gpu_refused() {
  expect<tilewright::UnsupportedError>("device (opencl)", [] { open("device_open"); });
}

// The same answers on a device as on the processor.
static void test_gpu() {
  std::vector<float> image(35);
  for (std::size_t i = 0; i < 35; ++i) image[i] = i % 3 == 0;
  auto here = open("digits").run({{image, {1, 7, 5}}}), there = open("device").run({{image, {1, 7, 5}}});
  CHECK(here[1].data<std::int64_t>()[0] == there[1].data<std::int64_t>()[0]);
  for (std::size_t i = 0; i < 10; ++i) CHECK(std::abs(here[0].data<float>()[i] - there[0].data<float>()[i]) < 1e-5f);
}

using Test = std::pair<const char*, void (*)()>;
static constexpr Test TESTS[] = {
    {"load", test_load},
    {"run", test_run},
    {"dynamic shapes", test_dynamic},
    {"async", test_async},
    {"errors: arguments", test_arguments},
    {"errors: libraries", test_libraries},
    {"errors: closed", test_closed},
    {"errors: threads", test_threads},
    {"gpu refused", test_gpu_refused},
};

// All tests again must leave nothing behind.
static void test_leaks() {
  bool is_same = false;
  // The system keeps memory of threads that have ended; a leak shows in every round.
  for (int round = 0; !is_same && round < 5; ++round) {
    std::size_t bytes = __sanitizer_get_current_allocated_bytes();
    for (const auto& [name, function] : TESTS) function();
    is_same = __sanitizer_get_current_allocated_bytes() == bytes;
  }
  CHECK(is_same);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  folder = argv[1];
  for (const auto& [name, function] : TESTS) {
    function();
    std::cout << "ok " << name << std::endl;
  }
  test_leaks();
  std::cout << "ok leaks" << std::endl;
  // Only where a device is, and last: drivers keep memory of their own.
  if (std::getenv("TILEWRIGHT_GPU")) {
    test_gpu();
    std::cout << "ok gpu" << std::endl;
  }
}
