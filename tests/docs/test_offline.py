from docs.extensions.offline import loaded_from_elsewhere


def test_what_a_browser_loads_from_elsewhere_is_found_and_links_are_not():
    page = """
        <link rel="stylesheet" href="https://fonts.example/a.css">
        <script defer src="//cdn.example/mathjax.js"></script>
        <img alt="x" src='http://pictures.example/a.png'>
        <style>@import "https://styles.example/b.css"; p { color: url(//b.example/c.png) }</style>
        <a href="https://arxiv.org/abs/1606.01885">a paper</a>
        <script src="_static/site.js"></script> <link rel="canonical" href="https://docs.example/">
    """
    assert loaded_from_elsewhere(page) == [
        "https://fonts.example/a.css",
        "//cdn.example/mathjax.js",
        "http://pictures.example/a.png",
        "https://styles.example/b.css",
        "//b.example/c.png",
    ]
