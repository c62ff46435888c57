/* Which digit is in a picture of 7 lines of 5 marks? classify LIBRARY IMAGE */

#include <stdio.h>

#include "tilewright.h"

static int read_image(const char* path, float image[35]) {
  FILE* file = fopen(path, "r");
  if (file == NULL) return -1;
  int count = 0;
  for (int mark; count < 35 && (mark = fgetc(file)) != EOF;)
    if (mark == '#' || mark == '.') image[count++] = mark == '#';
  fclose(file);
  return count == 35 ? 0 : -1;
}

int main(int argc, char** argv) {
  float image[35], probabilities[10];
  int64_t digit;
  if (argc != 3 || read_image(argv[2], image)) {
    fprintf(stderr, "usage: classify LIBRARY IMAGE (7 lines of 5 marks, # or .)\n");
    return 2;
  }
  tilewright_model model;
  tilewright_error error;
  if (tilewright_open(argv[1], &model, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  const int64_t image_shape[] = {1, 7, 5}, probabilities_shape[] = {1, 10}, digit_shape[] = {1};
  tilewright_tensor inputs[] = {{image, sizeof image, image_shape, 3, TILEWRIGHT_FLOAT32}};
  tilewright_tensor outputs[] = {{probabilities, sizeof probabilities, probabilities_shape, 2, TILEWRIGHT_FLOAT32},
                                 {&digit, sizeof digit, digit_shape, 1, TILEWRIGHT_INT64}};
  if (tilewright_run(model, inputs, 1, outputs, 2, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  printf("a %d (%.1f%%)\n", (int)digit, 100 * probabilities[digit]);
  tilewright_close(model, NULL);
  return 0;
}
