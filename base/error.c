#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

llmc_status
error_set(llmc_error *err, llmc_status code, const char *fmt, ...)
{
	if (err) {
		va_list ap;
		va_start(ap, fmt);
		err->code = code;
		vsnprintf(err->text, sizeof err->text, fmt, ap);
		va_end(ap);
		utf8_make_printable(err->text, true);
	}
	return code;
}

void
error_prefix(llmc_error *err, const char *fmt, ...)
{
	char head[512], tail[sizeof err->text];
	va_list ap;

	if (!err)
		return;
	va_start(ap, fmt);
	vsnprintf(head, sizeof head, fmt, ap);
	va_end(ap);
	memcpy(tail, err->text, sizeof tail);
	snprintf(err->text, sizeof err->text, "%.*s: %.*s", (int)sizeof head, head,
	         (int)(sizeof err->text - sizeof head - 4), tail);
	utf8_make_printable(err->text, true);
}
