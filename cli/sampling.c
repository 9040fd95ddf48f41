/* Defaults of sampling options: values that the model recommends, and a fresh seed. */
#include <string.h>

#include "base/random.h"
#include "cli/cli.h"

bool
sampling_known(const char *by)
{
	return !by || !strcmp(by, "model") || !strcmp(by, "neutral");
}

void
sampling_advice(const llmc_model *m, Sampling *s, bool use, bool quiet)
{
	llmc_advice a = LLMC_INIT(llmc_advice);
	size_t n;
	const llmc_option *o = llmc_sampling_options(&n);
	char text[256] = "", number[NUMBER_SIZE];

	llmc_sampling_advice(m, &a);
	for (size_t i = 0; i < n && i < 64; i++) {
		void *to = (char *)&s->p + o[i].offset;
		const void *from = (const char *)&a.params + o[i].offset;
		size_t len = strlen(text);
		if (!use || !(a.set >> i & 1) || opt_given(to))
			continue;
		memcpy(to, from, o[i].kind == LLMC_OPTION_INT ? sizeof(int32_t) : sizeof(float));
		number_plain(number,
		             o[i].kind == LLMC_OPTION_INT ? *(int32_t *)to : (double)*(float *)to,
		             6);
		snprintf(text + len, sizeof text - len, "%s%s %s", len ? ", " : "", o[i].name,
		         number);
	}
	if (*text && !quiet)
		fprintf(stderr, "llmc: sampling as the model advises (%s): %s\n", a.source, text);
}

uint64_t
fresh_seed(void)
{
	return random_u64() >> 32; /* 32 bits: short enough to type */
}
