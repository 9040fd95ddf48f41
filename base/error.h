/* Errors as sentences, handed back through the caller's llmc_error. Nothing in the library prints.
 */
#ifndef LLMC_BASE_ERROR_H
#define LLMC_BASE_ERROR_H

#include "llmc.h"

/* Set *err (may be NULL) to the formatted sentence and return `code`, so that `return
 * error_set(...)` reads well. */
llmc_status error_set(llmc_error *err, llmc_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "what: " in front of the text already in *err. */
void error_prefix(llmc_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* return the status of `call` when it is not LLMC_OK */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		llmc_status try_status_ = (call);                                                  \
		if (try_status_ != LLMC_OK)                                                        \
			return try_status_;                                                        \
	} while (0)

/* as TRY, but leave through `fail:` with the status in the local variable `status` */
#define TRY_GOTO(call)                                                                             \
	do {                                                                                       \
		status = (call);                                                                   \
		if (status != LLMC_OK)                                                             \
			goto fail;                                                                 \
	} while (0)

#endif
