"""page.html, style.css"""
