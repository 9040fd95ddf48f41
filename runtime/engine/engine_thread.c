/* Start threads of an engine. */
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "runtime/engine/engine_internal.h"

llmc_status
thread_start(void *(*fn)(void *user), void *user, pthread_t *out, llmc_error *err)
{

	int failed = thread_create(out, NULL, fn, user);
	return failed ? error_set(err, LLMC_E_MEMORY,
	                          "cannot start a thread of the engine: "
	                          "%s",
	                          strerror(failed))
	              : LLMC_OK;
}
