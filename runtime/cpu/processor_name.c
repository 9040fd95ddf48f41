/* Name of the processor, from the text of /proc/cpuinfo: x86 states a name, Arm the numbers of
 * implementer and part. */
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/cpu.h"

typedef struct Part {
	unsigned implementer, part;
	const char *name;
} Part;

/* Cores that run the kernels of cpu-neon or cpu-i8mm */
static const Part parts[] = {
	{ 0x41, 0xd05, "Cortex-A55" },    { 0x41, 0xd0a, "Cortex-A75" },
	{ 0x41, 0xd0b, "Cortex-A76" },    { 0x41, 0xd0c, "Neoverse-N1" },
	{ 0x41, 0xd0d, "Cortex-A77" },    { 0x41, 0xd40, "Neoverse-V1" },
	{ 0x41, 0xd41, "Cortex-A78" },    { 0x41, 0xd42, "Cortex-A78AE" },
	{ 0x41, 0xd44, "Cortex-X1" },     { 0x41, 0xd46, "Cortex-A510" },
	{ 0x41, 0xd47, "Cortex-A710" },   { 0x41, 0xd48, "Cortex-X2" },
	{ 0x41, 0xd49, "Neoverse-N2" },   { 0x41, 0xd4b, "Cortex-A78C" },
	{ 0x41, 0xd4d, "Cortex-A715" },   { 0x41, 0xd4e, "Cortex-X3" },
	{ 0x41, 0xd4f, "Neoverse-V2" },   { 0x41, 0xd80, "Cortex-A520" },
	{ 0x41, 0xd81, "Cortex-A720" },   { 0x41, 0xd82, "Cortex-X4" },
	{ 0x41, 0xd83, "Neoverse-V3AE" }, { 0x41, 0xd84, "Neoverse-V3" },
	{ 0x41, 0xd85, "Cortex-X925" },   { 0x41, 0xd87, "Cortex-A725" },
	{ 0x41, 0xd8e, "Neoverse-N3" },   { 0xc0, 0xac3, "Ampere-1" },
	{ 0xc0, 0xac4, "Ampere-1A" },
};

static const char *
part_name(unsigned implementer, unsigned part)
{
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (parts[i].implementer == implementer && parts[i].part == part)
			return parts[i].name;
	return NULL;
}

/* Append the name of a part unless it is there: cores of a processor may differ. */
static void
add_part(char *out, size_t cap, unsigned implementer, unsigned part)
{
	char number[64];
	const char *name = part_name(implementer, part);
	const size_t len = strlen(out);

	if (!name) {
		snprintf(number, sizeof number, "Arm implementer 0x%x, part 0x%x", implementer,
		         part);
		name = number;
	}
	if (!strstr(out, name) && len < cap)
		snprintf(out + len, cap - len, "%s%s", len ? " and " : "", name);
}

void
processor_name(FILE *cpuinfo, char *out, size_t cap)
{
	char line[512];
	unsigned implementer = 0;

	*out = 0;
	while (cpuinfo && fgets(line, sizeof line, cpuinfo)) {
		char *colon = strchr(line, ':');
		if (!colon)
			continue;
		colon[1 + strcspn(colon + 1, "\n")] = 0;
		const char *value = colon + 1 + (colon[1] == ' ');
		if (strncmp(line, "model name", 10) == 0) {
			snprintf(out, cap, "%s", value);
			return;
		}
		if (strncmp(line, "CPU implementer", 15) == 0)
			implementer = (unsigned)strtoul(value, NULL, 0);
		if (strncmp(line, "CPU part", 8) == 0)
			add_part(out, cap, implementer, (unsigned)strtoul(value, NULL, 0));
	}
	if (!*out)
		snprintf(out, cap, "unknown");
}
