#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

void
log_line(llmc_log_fn log, void *user, int level, const char *fmt, ...)
{
	char line[1600];
	va_list ap;

	if (!log)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	utf8_make_printable(line, true);
	log(user, level, line);
}

void
log_text(llmc_log_fn log, void *user, int level, const char *text)
{
	while (log && *text) {
		const char *end = strchrnul(text, '\n');
		log_line(log, user, level, "%.*s", (int)(end - text), text);
		text = *end ? end + 1 : end;
	}
}
