"""PDFs of one page, written by hand."""

from __future__ import annotations

import zlib

PAGES = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"


def pdf(stream: bytes, *, pages: bytes = PAGES) -> bytes:
    """A PDF that draws what the stream says."""
    packed = zlib.compress(stream, 9)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        pages,
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /MediaBox [0 0 200 100] /Resources "
        b"<< /Font << /F 5 0 R >> >> >>",
        b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(packed), packed),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = b"%PDF-1.4\n", list[int]()
    for number, one in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in offsets)
    return out + table + b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % len(out)


def page_of(text: str) -> bytes:
    """A PDF of one page with a text."""
    return pdf(f"BT /F 12 Tf 10 50 Td ({text}) Tj ET".encode())
