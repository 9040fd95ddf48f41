/* Sleep until another thread or process changes a word, by futex(2), which only futex.c uses. A
 * port to another system replaces these two functions: macOS has os_sync_wait_on_address. */
#ifndef LLMC_BASE_FUTEX_H
#define LLMC_BASE_FUTEX_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sleep until futex_wake(word) if the low 32 bits of *word equal `value`; it may also return
 * earlier without a reason. shared: the word is in memory that processes share. seconds: time
 * limit, 0: none. False: the time is over. */
bool futex_wait(atomic_ullong *word, uint32_t value, bool shared, double seconds);
/* Wake all threads that sleep in futex_wait(word); with `shared` also threads of other
 * processes. */
void futex_wake(atomic_ullong *word, bool shared);
#endif
