/* Formats of strings, as expressions: the parts of the standards that people write. */
#include <string.h>

#include "grammar/schema.h"

#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define DATE                                                                                       \
	"[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-"  \
	"9]|30)|[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0["   \
	"048]|[2468][048]|[13579][26])00)-02-29"
#define TIME                                                                                       \
	"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]" \
	"):[0-5][0-9])"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define H16 "[0-9a-fA-F]{1,4}"

const char *
format_regex(const char *name)
{
	static const struct {
		const char *name, *regex;
	} formats[] = {
		{ "date", "^(" DATE ")$" },
		{ "time", "^" TIME "$" },
		{ "date-time", "^(" DATE ")[Tt]" TIME "$" },
		{ "duration", "^P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)("
		              "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+"
		              "H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))$" },
		{ "uuid",
		  "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$" },
		{ "ipv4", "^(" OCTET "\\.){3}" OCTET "$" },
		{ "ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,7}:|(" H16 ":){1,6}:" H16 "|(" H16
		          ":){1,5}(:" H16 "){1,2}|(" H16 ":){1,4}(:" H16 "){1,3}|(" H16
		          ":){1,3}(:" H16 "){1,4}|(" H16 ":){1,2}(:" H16 "){1,5}|" H16 ":(:" H16
		          "){1,6}|:((:" H16 "){1,7}|:))$" },
		{ "hostname", "^" LABEL "(\\." LABEL ")*$" },
		{ "email",
		  "^[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+)*@" LABEL
		  "(\\." LABEL ")*$" },
		{ "uri",
		  "^[a-zA-Z][a-zA-Z0-9+.-]*:([a-zA-Z0-9._~:/?#@!$&'()*+,;=-]|%[0-9a-fA-F]{2})+$" },
		{ "uri-reference", "^([a-zA-Z0-9._~:/?#@!$&'()*+,;=-]|%[0-9a-fA-F]{2})*$" },
	};

	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (!strcmp(name, formats[i].name))
			return formats[i].regex;
	return NULL;
}
