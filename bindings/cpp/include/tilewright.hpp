// Models that Tilewright has exported, for C++20: one header over the runtime for C (bindings/c).
//
//   tilewright::Model model("digits.so");
//   std::vector<float> image(35);
//   std::vector<tilewright::Tensor> outputs = model.run({{image, {1, 7, 5}}});
//   std::span<const float> probabilities = outputs[0].data<float>();
//
// Inputs are views of the caller's memory and are not copied. Every member may be called from every thread. A model that was
// closed, or moved from, throws ClosedError.

#ifndef TILEWRIGHT_HPP
#define TILEWRIGHT_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tilewright.h"

namespace tilewright {

// What went wrong, with the status of the runtime for C. Each kind has a class of its own.
class Error : public std::runtime_error {
 public:
  Error(tilewright_status status, const char* message) : std::runtime_error(message), status_(status) {}
  tilewright_status status() const noexcept { return status_; }

 private:
  tilewright_status status_;
};

struct ArgumentError : Error { using Error::Error; };     // numbers of arrays, memory that overlaps or is not there
struct FileError : Error { using Error::Error; };         // the file cannot be read
struct LibraryError : Error { using Error::Error; };      // truncated, damaged, or no library
struct UnsupportedError : Error { using Error::Error; };  // for another processor, or not to be run from C++
struct ShapeError : Error { using Error::Error; };
struct TypeError : Error { using Error::Error; };
struct DataError : Error { using Error::Error; };         // an index out of range, a division by zero
struct ClosedError : Error { using Error::Error; };

namespace detail {

[[noreturn]] inline void raise(const tilewright_error& error) {
  const char* text = error.message;
  switch (error.status) {
    case TILEWRIGHT_INVALID_ARGUMENT: throw ArgumentError(error.status, text);
    case TILEWRIGHT_NOT_READABLE: throw FileError(error.status, text);
    case TILEWRIGHT_BAD_LIBRARY: throw LibraryError(error.status, text);
    case TILEWRIGHT_UNSUPPORTED: throw UnsupportedError(error.status, text);
    case TILEWRIGHT_BAD_SHAPE: throw ShapeError(error.status, text);
    case TILEWRIGHT_BAD_TYPE: throw TypeError(error.status, text);
    case TILEWRIGHT_BAD_DATA: throw DataError(error.status, text);
    case TILEWRIGHT_CLOSED: throw ClosedError(error.status, text);
    case TILEWRIGHT_OUT_OF_MEMORY: throw std::bad_alloc();
    default: throw Error(error.status, text);
  }
}

template <class Function, class... Arguments>
void call(Function function, Arguments... arguments) {
  tilewright_error error;
  if (function(arguments..., &error)) raise(error);
}

}  // namespace detail

enum class DType : tilewright_dtype {
  Bool = TILEWRIGHT_BOOL, Int8 = TILEWRIGHT_INT8, Int16 = TILEWRIGHT_INT16, Int32 = TILEWRIGHT_INT32, Int64 = TILEWRIGHT_INT64,
  UInt8 = TILEWRIGHT_UINT8, UInt16 = TILEWRIGHT_UINT16, UInt32 = TILEWRIGHT_UINT32, UInt64 = TILEWRIGHT_UINT64,
  Float16 = TILEWRIGHT_FLOAT16, BFloat16 = TILEWRIGHT_BFLOAT16, Float32 = TILEWRIGHT_FLOAT32, Float64 = TILEWRIGHT_FLOAT64,
  Float8E4M3FN = TILEWRIGHT_FLOAT8_E4M3FN, Float8E4M3FNUZ = TILEWRIGHT_FLOAT8_E4M3FNUZ, Float8E5M2 = TILEWRIGHT_FLOAT8_E5M2,
  Float8E5M2FNUZ = TILEWRIGHT_FLOAT8_E5M2FNUZ, Float8E8M0FNU = TILEWRIGHT_FLOAT8_E8M0FNU,
  Float4E2M1FN = TILEWRIGHT_FLOAT4_E2M1FN, Int1 = TILEWRIGHT_INT1, Int2 = TILEWRIGHT_INT2, Int4 = TILEWRIGHT_INT4,
  UInt1 = TILEWRIGHT_UINT1, UInt2 = TILEWRIGHT_UINT2, UInt4 = TILEWRIGHT_UINT4,
};

inline std::string_view name_of(DType dtype) {
  const char* name = tilewright_dtype_name(static_cast<tilewright_dtype>(dtype));
  return name ? name : "unknown";
}

inline std::int64_t size_of(DType dtype) { return tilewright_dtype_size(static_cast<tilewright_dtype>(dtype)); }

// The data type of a C++ type. Floats of 16 bits and fewer are passed as their bits, and named explicitly.
template <class T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>) return DType::Bool;
  else if constexpr (std::is_same_v<U, float>) return DType::Float32;
  else if constexpr (std::is_same_v<U, double>) return DType::Float64;
  else {
    static_assert(std::is_integral_v<U> && sizeof(U) <= 8, "a tensor has numbers; name the DType of others");
    constexpr int power = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : sizeof(U) == 4 ? 2 : 3;
    return static_cast<DType>((std::is_signed_v<U> ? TILEWRIGHT_INT8 : TILEWRIGHT_UINT8) + power);
  }
}

using Shape = std::vector<std::int64_t>;

// One extent of a stated shape: a number, or a text over symbols ("batch", "n + m").
struct Dimension {
  std::optional<std::int64_t> size;
  std::string symbol;
};

struct Value {
  std::string name;
  DType dtype;
  std::vector<Dimension> shape;
};

// Memory of somebody else, with a shape.
class View {
 public:
  template <class T>
  View(std::span<T> data, Shape shape) : View(data, std::move(shape), dtype_of<T>()) {}
  template <class T>
  View(const std::vector<T>& data, Shape shape) : View(std::span<const T>(data), std::move(shape)) {}
  template <class T>
  View(std::span<T> data, Shape shape, DType dtype)
      : data_(const_cast<std::remove_cv_t<T>*>(data.data())), bytes_(data.size_bytes()), shape_(std::move(shape)), dtype_(dtype) {}

  const Shape& shape() const noexcept { return shape_; }
  DType dtype() const noexcept { return dtype_; }
  tilewright_tensor raw() const noexcept {
    return {data_, static_cast<std::int64_t>(bytes_), shape_.data(), static_cast<std::int32_t>(shape_.size()),
            static_cast<tilewright_dtype>(dtype_)};
  }

 private:
  void* data_;
  std::size_t bytes_;
  Shape shape_;
  DType dtype_;
};

// An array of its own: what a run gives back.
class Tensor {
 public:
  Tensor(DType dtype, Shape shape)
      : shape_(std::move(shape)),
        dtype_(dtype),
        count_(std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>())),
        memory_(allocate(static_cast<std::size_t>(count_ * size_of(dtype)))) {}

  const Shape& shape() const noexcept { return shape_; }
  DType dtype() const noexcept { return dtype_; }
  std::int64_t size() const noexcept { return count_; }

  // The elements. T must be the tensor's type; 16-bit floats and smaller are read as unsigned integers of their size.
  template <class T>
  std::span<const T> data() const {
    check<T>();
    return {reinterpret_cast<const T*>(memory_.get()), static_cast<std::size_t>(count_)};
  }
  template <class T>
  std::span<T> data() {
    check<T>();
    return {reinterpret_cast<T*>(memory_.get()), static_cast<std::size_t>(count_)};
  }

  View view() const {
    std::span<const std::byte> bytes(memory_.get(), static_cast<std::size_t>(count_ * size_of(dtype_)));
    return View(bytes, shape_, dtype_);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };

  static std::byte* allocate(std::size_t bytes) {
    return static_cast<std::byte*>(::operator new[](bytes ? bytes : 1, std::align_val_t{64}));
  }

  template <class T>
  void check() const {
    bool is_bits = std::is_unsigned_v<T> && static_cast<std::int64_t>(sizeof(T)) == size_of(dtype_) &&
                   static_cast<tilewright_dtype>(dtype_) >= TILEWRIGHT_FLOAT16 && dtype_ != DType::Float32 &&
                   dtype_ != DType::Float64;
    if (dtype_of<T>() != dtype_ && !is_bits) {
      std::string text = "the tensor is of " + std::string(name_of(dtype_)) + ", not of " + std::string(name_of(dtype_of<T>()));
      throw TypeError(TILEWRIGHT_BAD_TYPE, text.c_str());
    }
  }

  Shape shape_;
  DType dtype_;
  std::int64_t count_;
  std::unique_ptr<std::byte[], Free> memory_;
};

// An exported model. Moved, not copied; closed when it goes.
class Model {
 public:
  explicit Model(const std::filesystem::path& path) { detail::call(tilewright_open, path.c_str(), &model_); }

  explicit Model(std::span<const std::byte> library) {
    detail::call(tilewright_open_bytes, static_cast<const void*>(library.data()), static_cast<std::int64_t>(library.size()), &model_);
  }

  // A model of a library that the program is linked with.
  explicit Model(const tilewright_interface& interface) { detail::call(tilewright_open_linked, &interface, &model_); }

  Model(Model&& other) noexcept : model_(std::exchange(other.model_, 0)) {}
  Model& operator=(Model&& other) noexcept {
    if (this != &other) {
      close();
      model_ = std::exchange(other.model_, 0);
    }
    return *this;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() { close(); }

  // Later calls throw ClosedError; calls that run now end as if nothing had happened.
  void close() noexcept { tilewright_close(model_, nullptr); }

  std::string name() const {
    const char* name;
    detail::call(tilewright_describe, model_, &name, nullptr, nullptr, nullptr);
    return name;
  }

  std::vector<Value> inputs() const { return values(TILEWRIGHT_INPUT); }
  std::vector<Value> outputs() const { return values(TILEWRIGHT_OUTPUT); }

  std::string metadata() const {
    const char* json;
    detail::call(tilewright_metadata, model_, &json);
    return json;
  }

  // 0 is the default.
  void set_num_threads(std::int64_t threads) { detail::call(tilewright_set_num_threads, model_, threads); }

  std::vector<Shape> output_shapes(std::span<const View> inputs) const {
    std::vector<tilewright_tensor> raw = raw_of(inputs);
    std::vector<Value> stated = outputs();
    std::size_t total = 0;
    for (const Value& value : stated) total += value.shape.size();
    Shape dims(total);
    detail::call(tilewright_output_shapes, model_, raw.data(), static_cast<std::int32_t>(raw.size()), dims.data(),
                 static_cast<std::int32_t>(total));
    std::vector<Shape> shapes;
    auto at = dims.begin();
    for (const Value& value : stated) {
      auto end = at + static_cast<std::ptrdiff_t>(value.shape.size());
      shapes.emplace_back(at, end);
      at = end;
    }
    return shapes;
  }

  std::vector<Tensor> run(std::span<const View> inputs) const {
    std::vector<Shape> shapes = output_shapes(inputs);
    std::vector<Value> stated = outputs();
    std::vector<Tensor> results;
    std::vector<View> views;
    for (std::size_t i = 0; i < stated.size(); ++i) views.push_back(results.emplace_back(stated[i].dtype, shapes[i]).view());
    run_into(inputs, views);
    return results;
  }
  std::vector<Tensor> run(std::initializer_list<View> inputs) const { return run(std::span(inputs.begin(), inputs.size())); }

  // Writes into memory that is there. It must share nothing with other arrays of the call.
  void run_into(std::span<const View> inputs, std::span<const View> outputs) const {
    std::vector<tilewright_tensor> from = raw_of(inputs), to = raw_of(outputs);
    detail::call(tilewright_run, model_, from.data(), static_cast<std::int32_t>(from.size()), to.data(),
                 static_cast<std::int32_t>(to.size()));
  }

  // On a thread of its own. The inputs' memory must stay until the future is ready; the model may go before.
  std::future<std::vector<Tensor>> run_async(std::vector<View> inputs) const {
    auto job = std::make_unique<Job>();
    std::vector<Shape> shapes = output_shapes(inputs);
    std::vector<Value> stated = outputs();
    std::vector<tilewright_tensor> from = raw_of(inputs), to;
    for (std::size_t i = 0; i < stated.size(); ++i) {
      job->results.emplace_back(stated[i].dtype, std::move(shapes[i]));
    }
    std::vector<View> views;
    for (const Tensor& result : job->results) views.push_back(result.view());
    to = raw_of(views);
    tilewright_job* started;
    detail::call(tilewright_start, model_, from.data(), static_cast<std::int32_t>(from.size()), to.data(),
                 static_cast<std::int32_t>(to.size()), nullptr, nullptr, &started);
    job->job = started;
    // The job runs already. What is deferred is waiting for it, so that no second thread does only that.
    return std::async(std::launch::deferred, [job = std::move(job)]() mutable {
      tilewright_error error;
      if (tilewright_wait(std::exchange(job->job, nullptr), &error)) detail::raise(error);
      return std::move(job->results);
    });
  }

 private:
  // A future that nobody asks is waited for when it goes: the job writes into its memory.
  struct Job {
    tilewright_job* job = nullptr;
    std::vector<Tensor> results;
    ~Job() {
      if (job) tilewright_wait(job, nullptr);
    }
  };

  static std::vector<tilewright_tensor> raw_of(std::span<const View> views) {
    std::vector<tilewright_tensor> raw;
    for (const View& view : views) raw.push_back(view.raw());
    return raw;
  }

  std::vector<Value> values(std::int32_t role) const {
    std::int32_t inputs, outputs;
    detail::call(tilewright_describe, model_, nullptr, &inputs, &outputs, nullptr);
    std::vector<Value> values;
    for (std::int32_t i = 0; i < (role == TILEWRIGHT_INPUT ? inputs : outputs); ++i) {
      tilewright_value raw;
      detail::call(tilewright_inspect, model_, role, i, &raw);
      Value& value = values.emplace_back(Value{raw.name, static_cast<DType>(raw.dtype), {}});
      for (std::int32_t axis = 0; axis < raw.rank; ++axis) {
        if (raw.symbolic && raw.symbolic[axis])
          value.shape.push_back({std::nullopt, raw.symbolic[axis]});
        else
          value.shape.push_back({raw.shape[axis], ""});
      }
    }
    return values;
  }

  tilewright_model model_ = 0;
};

}  // namespace tilewright

#endif  // TILEWRIGHT_HPP
