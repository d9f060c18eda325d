// Text from strangers in messages: bounded, valid UTF-8, without control characters.
#include "core/printable.h"

#include "check.h"

using wkvm::printable;

int main() {
  CHECK(printable("", 4).empty());
  CHECK(printable("blocks.0", 8) == "blocks.0");
  CHECK(printable("blocks.0", 7) == "blocks....");
  CHECK(printable("a\nb\tc\x7F\x1B[31m", 40) == "a?b?c??[31m");
  CHECK(printable(std::string_view("a\0b", 3), 40) == "a?b");
  CHECK(printable("\xC2\x85\xC2\xA0", 40) == "?\xC2\xA0");  // C1 goes, a no-break space stays
  CHECK(printable("na\xC3\xAFve", 4) == "na\xC3\xAF...");
  CHECK(printable("na\xC3\xAFve", 3) == "na...");  // never half a character
  CHECK(printable("\xF0\x9F\x90\xA6", 3) == "...");
  CHECK(printable("a\xFF\xC3z\xED\xA0\x80\xE2\x82", 40) == "a??z?????");  // not UTF-8
  return 0;
}
