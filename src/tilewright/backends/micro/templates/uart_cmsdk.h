/* The serial line of Arm's MPS boards (CMSDK UART). For another board write these three functions for its own. */
#include <stdint.h>

#define UART(offset) (*(volatile uint32_t*)(${uart_address} + (offset)))

static inline void uart_start(void) {
  UART(0x10) = ${uart_divider};
  UART(0x08) = 3; /* send and receive */
}

static inline int uart_get(void) {
  while (!(UART(0x04) & 2)) {}
  return (int)(UART(0x00) & 0xff);
}

static inline void uart_put(uint8_t byte) {
  while (UART(0x04) & 1) {}
  UART(0x00) = byte;
}
