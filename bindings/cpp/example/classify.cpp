// Which digit is in a picture of 7 lines of 5 marks? classify LIBRARY IMAGE

#include <cstdio>
#include <fstream>
#include <iostream>

#include "tilewright.hpp"

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: classify LIBRARY IMAGE\n";
    return 2;
  }
  std::vector<float> image;
  std::ifstream file(argv[2]);
  for (char mark; file >> mark;) image.push_back(mark == '#');

  tilewright::Model model(argv[1]);
  auto outputs = model.run({{image, {1, 7, 5}}});
  auto digit = outputs[1].data<std::int64_t>()[0];
  std::printf("a %d (%.1f%%)\n", static_cast<int>(digit), 100 * outputs[0].data<float>()[static_cast<std::size_t>(digit)]);
} catch (const tilewright::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
