/* A locale with a decimal comma, generated if the machine has none: parsing of numbers in files
 * must not depend on the locale. */
#ifndef TESTS_UNIT_LOCALE_COMMA_H
#define TESTS_UNIT_LOCALE_COMMA_H

#include <locale.h>
#include <stdbool.h>

#include "tempdir.h"

/* Returns false if localedef is not installed. Undo with setlocale(LC_ALL, "C"). */
static inline bool
locale_comma(void)
{
	static const char text[] = "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep "
	                           "\"<U002E>\"\ngrouping 3;3\nEND LC_NUMERIC\n";
	char command[1200], number[8];
	Tempdir t;

	if (tempdir_open(&t))
		return false;
	FILE *f = fopen(tempdir_file(&t, "comma"), "w");
	if (f) {
		fputs(text, f);
		fclose(f);
	}
	snprintf(command, sizeof command,
	         "localedef -c -i %s/comma -f UTF-8 %s/xx_XX.UTF-8 >/dev/null 2>&1", t.path,
	         t.path);
	bool made = system(command) >= 0;
	setenv("LOCPATH", t.path, 1);
	made = made && setlocale(LC_NUMERIC, "xx_XX.UTF-8");
	unsetenv("LOCPATH");
	tempdir_close(&t);
	if (made)
		snprintf(number, sizeof number, "%.1f", 1.5);
	return made && !strcmp(number, "1,5");
}

#endif
