/* String formats as regexes: the common subset of each standard. */
#include <string.h>

#include "grammar/schema.h"

#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 "(" OCTET "\\.){3}" OCTET
/* years 0001 to 9999, as in the date types of most programs */
#define YEAR "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
	"(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"  \
	"02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
	"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0" \
	"-9])"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST LABEL "(\\." LABEL ")*"
#define H16 "[0-9a-fA-F]{1,4}"
#define LS32 "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
	"((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16  \
	":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32    \
	"|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16  \
	":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define ATEXT "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
/* RFC 3986 */
#define PCT "%[0-9a-fA-F]{2}"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define PCHAR_NC "([a-zA-Z0-9._~!$&'()*+,;=@-]|" PCT ")"
#define REG_NAME "([a-zA-Z0-9._~!$&'()*+,;=-]|" PCT ")*"
#define USERINFO "([a-zA-Z0-9._~!$&'()*+,;=:-]|" PCT ")*"
#define AUTHORITY                                                                                  \
	"(" USERINFO "@)?(" REG_NAME "|\\[(" IPV6                                                  \
	"|[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\\])(:[0-9]*)?"
#define PATH_ABS "/(" PCHAR "+(/" PCHAR "*)*)?"
#define TAIL "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define URI                                                                                        \
	"[a-zA-Z][a-zA-Z0-9+.-]*:(//" AUTHORITY "(/" PCHAR "*)*|" PATH_ABS "|" PCHAR "+(/" PCHAR   \
	"*)*)?" TAIL
#define RELATIVE "(//" AUTHORITY "(/" PCHAR "*)*|" PATH_ABS "|" PCHAR_NC "+(/" PCHAR "*)*)?" TAIL

const char *
format_regex(const char *name)
{
	static const struct {
		const char *name, *regex;
	} formats[] = {
		{ "date", "^" DATE "$" },
		{ "time", "^" TIME "$" },
		{ "date-time", "^" DATE "[Tt]" TIME "$" },
		{ "duration", "^P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)("
		              "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+"
		              "H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))$" },
		{ "uuid",
		  "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$" },
		{ "ipv4", "^" IPV4 "$" },
		{ "ipv6", "^" IPV6 "$" },
		{ "hostname", "^" HOST "$" },
		{ "email", "^(" ATEXT "+(\\." ATEXT "+)*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")@(" HOST
		           "|\\[(" IPV4 "|IPv6:" IPV6 ")\\])$" },
		{ "uri", "^" URI "$" },
		{ "uri-reference", "^(" URI "|" RELATIVE ")$" },
		{ "json-pointer", "^(/([^~/]|~[01])*)*$" },
		{ "relative-json-pointer", "^(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*)$" },
		{ "ip-address", "^(" OCTET "\\.){3}" OCTET "$" },
		{ "host-name", "^" LABEL "(\\." LABEL ")*$" },
		{ "uri-reference", "^([a-zA-Z0-9._~:/?#@!$&'()*+,;=-]|%[0-9a-fA-F]{2})*$" },
	};

	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (!strcmp(name, formats[i].name))
			return formats[i].regex;
	return NULL;
}

bool
format_is_standard(const char *name)
{
	static const char *const names[] = {
		"date",          "time",
		"date-time",     "duration",
		"uuid",          "ipv4",
		"ipv6",          "hostname",
		"email",         "uri",
		"uri-reference", "iri",
		"regex",         "idn-hostname",
		"idn-email",     "iri-reference",
		"host-name",     "ip-address",
		"uri-template",  "json-pointer",
		"color",         "relative-json-pointer",
	};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i]))
			return true;
	return false;
}
