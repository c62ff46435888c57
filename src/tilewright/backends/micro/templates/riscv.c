/* Start-up of a RISC-V processor in machine mode: memory, and a clock. */
#include <stdint.h>
#include "semihosting.h"

extern uint32_t tw_data_source, tw_data_begin, tw_data_end, tw_bss_begin, tw_bss_end;
int main(void);

/* Registers of control belong to an extension that libraries of the compiler are not built for. */
#define WITH_CONTROL(text) ".option push\n.option arch, +zicsr\n" text "\n.option pop"

__attribute__((section(".vectors"), naked, used)) void reset(void) {
  __asm__ volatile(WITH_CONTROL("la sp, tw_stack_top\nla t0, trapped\ncsrw mtvec, t0\nj begin"));
}

__attribute__((aligned(4), used)) void trapped(void) { fail("a trap of the processor", ""); }

__attribute__((used)) void begin(void) {
  for (uint32_t *to = &tw_data_begin, *from = &tw_data_source; to < &tw_data_end;) *to++ = *from++;
  for (uint32_t* to = &tw_bss_begin; to < &tw_bss_end;) *to++ = 0;
  leave(main());
}

void start_clock(void) {}

/* Instructions that were executed. */
uint32_t clock_ticks(void) {
  uint32_t count;
  __asm__ volatile(WITH_CONTROL("rdinstret %0") : "=r"(count));
  return count;
}

uint32_t clock_between(uint32_t begin, uint32_t end) { return end - begin; }
